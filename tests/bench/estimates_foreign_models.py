"""Ten trainings that the estimator was not made with, for `estimates_foreign.py`.

    python estimates_foreign_models.py NAME BATCH STEPS

After so many steps of the optimizer it prints the bytes that the allocator of a GPU has reserved. Needs torch and, by
the training, transformers, accelerate, diffusers, peft, torch_geometric, torchvision or bitsandbytes. Nothing is
downloaded: data is random, networks are initialised at random.
"""

import sys

import torch
from torch.nn import functional

BATCHES = {
    "unet": 8, "whisper": 4, "lora": 4, "mamba": 4, "gnn": 16, "accumulated": 8, "adam8": 8, "bitsandbytes": 8,
    "adafactor": 8, "frozen": 32,
}  # fmt: skip


class Rows(torch.utils.data.Dataset):
    """Random samples."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        return self.make()


class Run:
    """One training, at a micro-batch, until so many steps of its optimizer were made."""

    def __init__(self, batch, steps):
        self.batch, self.steps, self.made = batch, steps, 0
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def step_made(self):
        self.made += 1
        if self.made < self.steps:
            return
        if self.device == "cuda":
            sys.stdout.write(f"reserved {torch.cuda.max_memory_reserved()}\n")
        sys.exit(0)

    def loader(self, make, kind=torch.utils.data.DataLoader):
        return kind(Rows(make) if callable(make) else make, batch_size=self.batch)

    def follow(self, network, loader, loss_of, optimizer, *, accumulate=1, clip=False, dtype=torch.bfloat16):
        """Train in a plain loop."""
        network.to(self.device).train()
        optimizer = optimizer(parameter for parameter in network.parameters() if parameter.requires_grad)
        for number, batch in enumerate(loader):
            drawn = {key: value.to(self.device) for key, value in dict(batch).items()}
            with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = loss_of(network, drawn) / accumulate
            loss.backward()
            if (number + 1) % accumulate:
                continue
            if clip:
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self.step_made()

    def follow_trainer(self, network, make, **settings):
        """Train under transformers' Trainer."""
        import transformers

        run = self

        class Count(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                run.step_made()

        arguments = transformers.TrainingArguments(
            output_dir="/tmp/estimates-foreign", per_device_train_batch_size=self.batch, max_steps=self.steps + 1,
            report_to=[], save_strategy="no", disable_tqdm=True, bf16=True, **settings,
        )  # fmt: skip
        transformers.Trainer(model=network, args=arguments, train_dataset=Rows(make), callbacks=[Count()]).train()


def words(vocabulary, length):
    return lambda: {"input_ids": torch.randint(0, vocabulary, (length,))}


def predict_words(network, drawn):
    return network(input_ids=drawn["input_ids"], labels=drawn["input_ids"]).loss


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4)


def unet(run):
    """A diffusion model under accelerate, with an average of its weights and two micro-batches a step."""
    from accelerate import Accelerator
    from diffusers import DDPMScheduler, UNet2DConditionModel
    from diffusers.training_utils import EMAModel

    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    network = UNet2DConditionModel(
        sample_size=32, block_out_channels=(128, 256, 512, 512), cross_attention_dim=256, attention_head_dim=8
    )
    average = EMAModel(network.parameters(), model_cls=UNet2DConditionModel, model_config=network.config)
    schedule = DDPMScheduler(num_train_timesteps=1000)
    loader = run.loader(lambda: {"image": torch.randn(4, 32, 32), "words": torch.randn(77, 256)})
    network, optimizer, loader = accelerator.prepare(network, adamw(network.parameters()), loader)
    average.to(accelerator.device)
    for drawn in loader:
        with accelerator.accumulate(network):
            noise = torch.randn_like(drawn["image"])
            times = torch.randint(0, 1000, (len(noise),), device=noise.device)
            noisy = schedule.add_noise(drawn["image"], noise, times)
            found = network(noisy, times, drawn["words"]).sample
            accelerator.backward(functional.mse_loss(found.float(), noise))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            average.step(network.parameters())
            run.step_made()


def whisper(run):
    import transformers

    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
    wide = {"encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
    config = transformers.WhisperConfig(d_model=384, encoder_layers=4, decoder_layers=4, **heads, **wide)
    network = transformers.WhisperForConditionalGeneration(config)
    run.follow_trainer(
        network, lambda: {"input_features": torch.randn(80, 3000), "labels": torch.randint(0, 50_000, (128,))}
    )


def lora(run):
    """Weights in bfloat16 that are frozen, with matrices of rank 16 and activations that are computed again."""
    import peft
    import transformers

    network = transformers.LlamaForCausalLM(llama(1024, 2816, 12, 16, 4)).to(torch.bfloat16)
    network.enable_input_require_grads()
    settings = peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    run.follow_trainer(
        peft.get_peft_model(network, settings),
        lambda: dict.fromkeys(("input_ids", "labels"), torch.randint(0, 32_000, (512,))),
        gradient_checkpointing=True,
    )


def llama(hidden, inner, layers, heads, key_heads):
    import transformers

    return transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=key_heads, vocab_size=32_000,
    )  # fmt: skip


def mamba(run):
    import transformers

    config = transformers.MambaConfig(hidden_size=512, num_hidden_layers=8, vocab_size=32_000, use_cache=False)
    run.follow(transformers.MambaForCausalLM(config), run.loader(words(32_000, 128)), predict_words, adamw)


def gnn(run):
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GATv2Conv, global_mean_pool

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([GATv2Conv(64 if at == 0 else 256, 64, heads=4) for at in range(4)])
            self.last = torch.nn.Linear(256, 10)

        def forward(self, drawn):
            found = drawn["x"]
            for layer in self.layers:
                found = functional.elu(layer(found, drawn["edge_index"]))
            return self.last(global_mean_pool(found, drawn["batch"]))

    graphs = [
        Data(x=torch.randn(400, 64), edge_index=torch.randint(0, 400, (2, 6000)), y=torch.randint(0, 10, (1,)))
        for _ in range(600)
    ]

    def classify(network, drawn):
        return functional.cross_entropy(network(drawn), drawn["y"])

    run.follow(Network(), run.loader(graphs, DataLoader), classify, torch.optim.Adam, dtype=None)


def accumulated(run):
    """Four micro-batches a step, under SGD with Nesterov's momentum."""
    import transformers

    network = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6))

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, nesterov=True)

    run.follow(network, run.loader(words(50_257, 256)), predict_words, sgd, accumulate=4, clip=True)


class Adam8(torch.optim.Optimizer):
    """Adam with a state of bytes, and a scale for each 256 of them."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-4})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state, flat = self.state[parameter], parameter.grad.flatten()
                mean = self._average(state, "mean", flat, 0.9, 128)
                square = self._average(state, "square", flat * flat, 0.999, 0)
                parameter.add_((mean / (square.sqrt() + 1e-8)).view_as(parameter), alpha=-group["lr"])

    def _average(self, state, name, given, kept, zero):
        count = given.numel()
        if name not in state:
            state[name] = torch.full((count,), zero, dtype=torch.uint8, device=given.device)
            state[name + " scale"] = torch.zeros(-(-count // 256), device=given.device)
        scale = state[name + " scale"]
        rows = functional.pad(state[name].float() - zero, (0, -count % 256)).view(-1, 256) * scale[:, None]
        found = rows.flatten()[:count].mul_(kept).add_(given, alpha=1 - kept)
        rows = functional.pad(found, (0, -count % 256)).view(-1, 256)
        scale.copy_(rows.abs().amax(1).clamp_(min=1e-12) / 127)
        state[name].copy_(((rows / scale[:, None]).round() + zero).flatten()[:count])
        return found


def adam8(run, optimizer=Adam8):
    import transformers

    network = transformers.LlamaForCausalLM(llama(768, 2048, 10, 12, 12))
    run.follow(network, run.loader(words(32_000, 256)), predict_words, optimizer)


def bitsandbytes(run):
    import bitsandbytes as package

    adam8(run, package.optim.AdamW8bit)


def adafactor(run):
    import transformers

    network = transformers.T5ForConditionalGeneration(transformers.T5Config(decoder_start_token_id=0, num_layers=4))
    factored = transformers.Adafactor

    def optimizer(parameters):
        return factored(parameters, lr=1e-3, relative_step=False)

    run.follow(network, run.loader(words(32_128, 256)), predict_words, optimizer, dtype=None)


def frozen(run):
    """A ResNet-50 whose first half is frozen, in float16 under RMSprop with momentum."""
    import torchvision

    network = torchvision.models.resnet50(weights=None)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith(("layer3", "layer4", "fc")))

    def rmsprop(parameters):
        return torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.9)

    def classify(network, drawn):
        return functional.cross_entropy(network(drawn["image"]), drawn["kind"], label_smoothing=0.1)

    loader = run.loader(lambda: {"image": torch.randn(3, 224, 224), "kind": torch.randint(0, 1000, ())})
    run.follow(network, loader, classify, rmsprop, dtype=torch.float16)


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]](Run(int(sys.argv[2]), int(sys.argv[3])))
