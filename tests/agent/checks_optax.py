"""JAX trainings with optax in the ways that users write them, each in a process; a digest of its weights is printed."""

import functools
import hashlib
import os
import sys

import jax
import jax.numpy as jnp
import numpy
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState

ASIDES = ("nothing", "data_wait", "compile", "loop")
STEPS = 12
VALIDATES_AFTER = 8

data = numpy.random.default_rng(1).normal(size=(STEPS, 8, 4)).astype(numpy.float32)


def loss_of(weights, batch):
    return jnp.mean((batch @ weights["kernel"] + weights["bias"]) ** 2)


def updated(transformation, weights, state, batch):
    loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
    updates, state = transformation.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state, loss


@jax.jit
def evaluate(weights, batch):
    return loss_of(weights, batch)


def train(update):
    weights = {"kernel": jnp.ones((4, 1)), "bias": jnp.zeros(1)}
    transformation = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    state = transformation.init(weights)
    for number, batch in enumerate(data, 1):
        weights, state, _ = update(transformation, weights, state, batch)
        if number == VALIDATES_AFTER:
            for other in data:
                evaluate(weights, other)
    return weights


def train_compiled():
    return train(functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))(updated))


def train_method():
    class Model:
        @functools.partial(jax.jit, static_argnums=(0, 1))
        def step(self, transformation, weights, state, batch):
            return updated(transformation, weights, state, batch)

    return train(Model().step)


def train_nested():
    """The update is a compiled function of its own, called alone once, and then from within another."""
    inner = jax.jit(updated, static_argnums=0)

    def call_inner(transformation, weights, state, batch):
        return inner(transformation, weights, state, batch)

    outer = jax.jit(call_inner, static_argnums=0)
    steps = iter([inner] + [outer] * (STEPS - 1))

    def step(transformation, weights, state, batch):
        return next(steps)(transformation, weights, state, batch)

    return train(step)


def train_two():
    """Two networks and two optimizers, each with its own compiled function, as a GAN has."""
    step = jax.jit(updated, static_argnums=0)
    other = jax.jit(updated, static_argnums=0)
    second, adam = {"kernel": jnp.ones((4, 1)), "bias": jnp.zeros(1)}, optax.adam(0.1)
    state = adam.init(second)

    def both(transformation, weights, own, batch):
        nonlocal second, state
        second, state, _ = other(adam, second, state, batch)
        return step(transformation, weights, own, batch)

    return train(both)


def train_parallel():
    step = jax.pmap(updated, static_broadcasted_argnums=0)
    weights = {"kernel": jnp.ones((1, 4, 1)), "bias": jnp.zeros((1, 1))}
    transformation = optax.adam(0.1)
    state = jax.pmap(transformation.init)(weights)
    for batch in data:
        weights, state, _ = step(transformation, weights, state, batch[None])
    return weights


def train_linen():
    model = linen.Dense(1)
    weights = model.init(jax.random.key(2), data[0])
    state = TrainState.create(apply_fn=model.apply, params=weights, tx=optax.sgd(0.1, momentum=0.9))

    @jax.jit
    def step(state, batch):
        gradients = jax.grad(lambda weights: jnp.mean(state.apply_fn(weights, batch) ** 2))(state.params)
        return state.apply_gradients(grads=gradients)

    for batch in data:
        state = step(state, batch)
    return state.params


def train_nnx():
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, batch):
        gradients = nnx.grad(lambda model: jnp.mean(model(batch) ** 2))(model)
        optimizer.update(model, gradients)

    for batch in data:
        step(model, optimizer, batch)
    return nnx.state(model)


def train_ahead():
    """The update is lowered and compiled ahead of its first call."""
    step, compiled = jax.jit(updated, static_argnums=0), []

    def call(transformation, weights, state, batch):
        if not compiled:
            compiled.append(step.lower(transformation, weights, state, batch).compile())
        return compiled[0](weights, state, batch)

    return train(call)


def train_poisoned():
    data[STEPS // 2] = numpy.nan
    return train_compiled()


def train_and_validate():
    weights = train_compiled()
    for batch in data:
        evaluate(weights, batch)
    return weights


def say_aside():
    """Print, while JAX traces, what is reported meanwhile; nothing where nothing supervises."""
    claim = sys.modules.get("rocm_agent.claim")
    recorder = claim and claim.holding()
    print("traced in", recorder and ASIDES[recorder.aside], file=sys.stderr, flush=True)


def make_body():
    transformation = optax.adam(0.1)

    def body(carry, batch):
        weights, state, loss = updated(transformation, *carry, batch)
        say_aside()
        return (weights, state), loss

    weights = {"kernel": jnp.ones((4, 1)), "bias": jnp.zeros(1)}
    return body, (weights, transformation.init(weights))


def train_scanned():
    """The whole training is one call."""
    body, carry = make_body()
    return jax.jit(lambda carry, batches: jax.lax.scan(body, carry, batches))(carry, data)[0][0]


def train_epochs():
    """One call for each epoch."""
    body, carry = make_body()
    epoch = jax.jit(lambda carry, batches: jax.lax.scan(body, carry, batches))
    for batches in data.reshape(3, 4, 8, 4):
        carry, _ = epoch(carry, batches)
    return carry[0]


def train_uncompiled():
    """The program itself calls the loop, whose body JAX traces once."""
    body, carry = make_body()
    for batches in data.reshape(3, 4, 8, 4):
        carry, _ = jax.lax.scan(body, carry, batches)
    return carry[0]


def train_shared():
    """Two compiled functions with the same body, which JAX traces once; and a loop of the other kind."""
    body, carry = make_body()
    for _ in range(2):
        carry, _ = jax.jit(lambda carry, batches: jax.lax.scan(body, carry, batches))(carry, data)
    numbers = jnp.asarray(data)
    count = jax.jit(lambda carry: jax.lax.fori_loop(0, STEPS, lambda at, carry: body(carry, numbers[at])[0], carry))
    return count(carry)[0]


LOOPS = {"scanned": train_scanned, "epochs": train_epochs, "uncompiled": train_uncompiled, "shared": train_shared}
WAYS = {
    "eager": lambda: train(updated),
    "method": train_method,
    "nested": train_nested,
    "two": train_two,
    "parallel": train_parallel,
    "linen": train_linen,
    "nnx": train_nnx,
    "ahead": train_ahead,
    "compiled": train_and_validate,
}


def main(way):
    digest = hashlib.sha256()
    for leaf in jax.tree_util.tree_leaves({**WAYS, **LOOPS}[way]()):
        digest.update(numpy.asarray(leaf).tobytes())
    print(way, digest.hexdigest(), flush=True)


if sys.argv[1:] == ["poisoned"]:
    train_poisoned()
    sys.exit()
for way in sys.argv[1:] or WAYS:
    child = os.fork()  # before JAX starts its threads
    if not child:
        main(way)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
