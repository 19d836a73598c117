# make demo   a real YOLO training, supervised, hurt on purpose three times, resumed each time (about 3 minutes after the set-up)
# make test   the whole test suite, in stages (ARGS="tests/core -x": pytest as it is, with these arguments)
# make test-quick   units only: the tests that start no process
# make laws   every property test with a million examples, on all cores (LAWS_EXAMPLES=100000 for fewer)
# make mutants  300 changes to supervisor/core, one at a time: which of them its own tests do not notice
# make check  lint, types, import contracts
# make frozen-names  write tests/store/frozen_names.txt: every name that is stored or sent; and the tables as SQL, schema.sql
# make attacks ARGS="--actions 100000 --seed 1"   a hostile training for hours beside a healthy one; --systemd: under units
# make gallery ARGS="nanogpt timm"   other people's training scripts, as they are, hurt in every way (needs the network once)
# make wheel  dist/*.whl with manual pages and completions; make deb  dist/*.deb for Debian and Ubuntu (debhelper)
# make deb-check   the package installed, upgraded, removed in four releases, and upgraded under a training (root; debootstrap, lintian)
# make tools-check   the wheel installed by uv and by pipx, its commands, and an upgrade under a training (PyPI)
# make new-user   the README's commands typed on a bare Debian 12 and Ubuntu 24.04 (root; debootstrap, 12 GB, PyPI)
# make bench  the published figures beside their peers, measured on this machine
#
# Each target sets up what it needs: the daemon's environment in .venv, the training environments in $(CACHE), where
# they serve every checkout. TRAIN_PYTHON=/path/to/python uses an environment with torch and ultralytics that exists.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# The distribution's own first: it is what the package's users have, and it is built optimised. One that was built without
# those options, as pyenv does unless told to, needs a fifth more processor time for all that the tests run.
PYTHON ?= $(shell for p in /usr/bin/python3.12 /usr/bin/python3.11 /usr/bin/python3.13 /usr/bin/python3.10 \
	python3.12 python3.11 python3.13 python3.10 python3; do \
	$$p -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$p; break; }; done)
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rocm-supervisor
VENV := .venv

# torch 2.12.0 and torchvision 0.27.0 are the newest pair of builds that belong together.
CURRENT_PACKAGES := torch==2.12.0 torchvision==0.27.0 ultralytics==8.4.190 expecttest onnx
CURRENT := $(CACHE)/train-torch2.12-ultralytics8.4.190
# The environment of the Radeon RX 5600 XT that this project began with: ROCm 5.2 means torch 1.13.1 and Python 3.10.
OWNER_PACKAGES := torch==1.13.1 torchvision==0.14.1 numpy<2 opencv-python<4.11 ultralytics==8.4.190 expecttest
OWNER := $(CACHE)/train-torch1.13.1-ultralytics8.4.190
OWNER_BASE ?= $(shell for p in python3.10 $(PYENV_ROOT)/versions/3.10.*/bin/python $(HOME)/.pyenv/versions/3.10.*/bin/python; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 10))' 2>/dev/null && { echo $$p; break; }; done)

TRAIN_PYTHON ?= $(CURRENT)/bin/python
OWNER_PYTHON ?= $(if $(OWNER_BASE),$(OWNER)/bin/python)

# An environment that the caller names is the caller's to set up.
TRAIN_READY := $(if $(filter $(CURRENT)/bin/python,$(TRAIN_PYTHON)),$(CURRENT)/ready)
OWNER_READY := $(if $(filter $(OWNER)/bin/python,$(OWNER_PYTHON)),$(OWNER)/ready)

# In tests alone, of the environments that are ours: an interpreter that ends passes all that it imported once more in
# search of garbage, which takes as long as half of the import of torch. So does one that imports it without the agent,
# which keeps the collector from it: there it passes young objects more rarely.
QUICK_EXITS := $(patsubst %/ready,%/quick-exit,$(TRAIN_READY) $(OWNER_READY))
QUICK_EXIT := import os, gc; os.environ.get("TESTS_QUICK_EXIT") and (__import__("atexit").register(gc.freeze), \
	"ROCM_SUPERVISOR_ATTEMPT_DIR" in os.environ or gc.set_threshold(100000, 50, 1000))

# As little as they use of torch is imported by interpreters of most tests: two thirds of the time until a first step.
LEAN_TORCH := import os; p = os.environ.get("TESTS_LEAN_TORCH"); p and os.access(p, os.R_OK) and \
	exec(compile(open(p, "rb").read(), p, "exec"), {"__name__": "lean_torch"})

# Other frameworks, whose steps and saves are followed; torch comes from the current environment.
FOREIGN_PACKAGES := lightning==2.6.6 transformers[torch]==5.23.0 accelerate==1.15.0 jax==0.10.2 optax==0.2.8 flax==0.12.8 keras==3.15.1
FOREIGN := $(CACHE)/foreign

# What `supervisorctl export` writes for, and this package's own dependencies; the newest wandb has no reader of its files.
EXPORT_PACKAGES := pyarrow==26.0.1 mlflow-skinny==3.17.2 wandb==0.23.1
EXPORT := $(CACHE)/export-pyarrow26-mlflow3.17-wandb0.23

# What other people's training scripts need beyond that (tests/gallery/rows.toml).
GALLERY_PACKAGES := timm==1.0.28 datasets==5.2.0 evaluate==0.4.6 scikit-learn==1.9.1 pandas==3.1.1 seaborn==0.13.2 \
	tensorboard==2.21.0 jsonargparse[signatures]==4.53.0 trl==1.16.0 peft==0.21.2 rl_zoo3==2.9.2 \
	sentence-transformers==6.2.0 pytorch-ignite==0.5.5 pyro-ppl==1.9.1 x-transformers==2.31.10 torchdiffeq==0.2.5 \
	deepxde==1.15.0 tyro==1.0.17 hydra-core==1.3.8 boto3==1.44.8 sh==2.4.0 fire==0.7.1 loguru==0.7.3 wandb==0.23.1 \
	torch-geometric==2.8.1 skorch==1.4.0 numpydoc==1.11.0
# DeepSpeed is built for this machine; where it is not, its row says so.
GALLERY_BUILT := setuptools==80.9.0 wheel ninja py-cpuinfo hjson
GALLERY := $(CACHE)/gallery

PEERS := $(CACHE)/peers

# Looks for faults of accessibility in the page; in tests alone.
AXE_VERSION := 4.14.1
AXE_SHA256 := e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
AXE := $(CACHE)/axe-core-$(AXE_VERSION)/package/axe.min.js

# Two at a time would clear the folder under each other: the second waits, and finds it done. The kernel gives the lock
# back when whoever holds it has ended, a pip that outlives its make included; the file that stays means nothing.
define SET_UP_ALONE
@mkdir -p "$(dir $(1))"
exec {alone}> "$(1).lock"
flock --nonblock "$$alone" || { echo "waiting for another make, which sets up $(1)" >&2; flock "$$alone"; }
if [[ -z "$(findstring B,$(firstword -$(MAKEFLAGS)))" && -e "$@" $(foreach needed,$^,&& ! "$(needed)" -nt "$@") ]]; then
	exit 0
fi
endef

.PHONY: help demo test test-quick laws mutants frozen-names check lint types contracts bench gallery clean wheel deb deb-check tools-check new-user

help:
	@sed -n 's/^# \(make\)/\1/p' Makefile

$(VENV)/ready: pyproject.toml
	$(call SET_UP_ALONE,$(VENV))
	test -n "$(PYTHON)" || { echo "no Python >= 3.10 found: install python3 and python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/pip install --quiet --editable '.[dev,nvidia]'
	touch $@

$(CURRENT)/ready:
	$(call SET_UP_ALONE,$(CURRENT))
	echo "Setting up a training environment in $(CURRENT)"
	echo "($(CURRENT_PACKAGES)): about 5 GB are downloaded and unpacked, once. TRAIN_PYTHON=... names one that exists."
	$(PYTHON) -m venv --clear "$(CURRENT)"
	"$(CURRENT)/bin/pip" install --progress-bar on $(foreach p,$(CURRENT_PACKAGES),'$(p)')
	touch $@

$(OWNER)/ready:
	$(call SET_UP_ALONE,$(OWNER))
	echo "Setting up the environment of the RX 5600 XT's owner in $(OWNER)"
	echo "($(OWNER_PACKAGES)): about 4 GB are downloaded and unpacked, once."
	"$(OWNER_BASE)" -m venv --clear "$(OWNER)"
	"$(OWNER)/bin/pip" install --progress-bar on $(foreach p,$(OWNER_PACKAGES),'$(p)')
	touch $@

$(FOREIGN)/ready: $(TRAIN_READY)
	$(call SET_UP_ALONE,$(FOREIGN))
	$(TRAIN_PYTHON) -m venv --clear "$(FOREIGN)"
	purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
	"$(TRAIN_PYTHON)" -c "$$purelib" > "$$("$(FOREIGN)/bin/python" -c "$$purelib")/training_environment.pth"
	"$(FOREIGN)/bin/pip" install --progress-bar off $(foreach p,$(FOREIGN_PACKAGES),'$(p)')
	touch $@

$(EXPORT)/ready:
	$(call SET_UP_ALONE,$(EXPORT))
	$(PYTHON) -m venv --clear "$(EXPORT)"
	"$(EXPORT)/bin/pip" install --progress-bar off '.[parquet,mlflow,wandb]' $(foreach p,$(EXPORT_PACKAGES),'$(p)')
	"$(EXPORT)/bin/pip" uninstall --quiet --yes rocm-supervisor
	touch $@

$(AXE):
	$(call SET_UP_ALONE,$(CACHE)/axe-core-$(AXE_VERSION))
	mkdir -p "$(CACHE)/axe-core-$(AXE_VERSION)"
	cd "$(CACHE)/axe-core-$(AXE_VERSION)"
	{ npm pack --silent axe-core@$(AXE_VERSION) && echo "$(AXE_SHA256)  axe-core-$(AXE_VERSION).tgz" | sha256sum --check --quiet \
		&& tar xzf axe-core-$(AXE_VERSION).tgz; } \
		|| echo "axe-core could not be fetched by npm: the test of the page's accessibility will be skipped" >&2

demo: $(VENV)/ready $(TRAIN_READY)
	$(VENV)/bin/supervisorctl demo --train-python "$(TRAIN_PYTHON)"

$(CURRENT)/quick-exit $(OWNER)/quick-exit $(FOREIGN)/quick-exit: %/quick-exit: %/ready Makefile
	@purelib="$$("$*/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	# Each whole or not at all: interpreters of another checkout's tests read them as they start.
	echo '$(QUICK_EXIT)' > "$$purelib/quick_exit.pth.$$$$"
	echo '$(LEAN_TORCH)' > "$$purelib/lean_torch.pth.$$$$"
	mv "$$purelib/quick_exit.pth.$$$$" "$$purelib/quick_exit.pth"
	mv "$$purelib/lean_torch.pth.$$$$" "$$purelib/lean_torch.pth"
	touch $@

test: $(VENV)/ready $(TRAIN_READY) $(OWNER_READY) $(FOREIGN)/ready $(QUICK_EXITS) $(FOREIGN)/quick-exit $(EXPORT)/ready $(AXE)
	@test -n "$(OWNER_PYTHON)" || echo "no Python 3.10 found: the tests in the owner's environment will be skipped" >&2
	ROCM_SUPERVISOR_TRAIN_PYTHON="$(TRAIN_PYTHON)" ROCM_SUPERVISOR_OWNER_PYTHON="$(OWNER_PYTHON)" \
		ROCM_SUPERVISOR_FOREIGN_PYTHON="$(FOREIGN)/bin/python" ROCM_SUPERVISOR_AXE="$(AXE)" \
		ROCM_SUPERVISOR_EXPORT_PYTHON="$(EXPORT)/bin/python" \
		$(VENV)/bin/python $(if $(ARGS),-m pytest $(ARGS),tests/rigs/run_tests.py)

test-quick: $(VENV)/ready
	@$(VENV)/bin/python tests/rigs/run_tests.py --quick $(ARGS)

LAWS_EXAMPLES ?= 1000000

laws: $(VENV)/ready
	@$(VENV)/bin/python tests/rigs/run_laws.py --examples $(LAWS_EXAMPLES) $(ARGS)

mutants: $(VENV)/ready
	@$(VENV)/bin/pip install --quiet mutmut==3.8.1
	$(VENV)/bin/python tests/rigs/run_mutants.py $(ARGS)

attacks: $(VENV)/ready
	$(VENV)/bin/python tests/attacks/campaign.py $(ARGS)

frozen-names: $(VENV)/ready
	$(VENV)/bin/python tests/store/frozen_names.py

check: lint types contracts

lint: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# The folders of the tests are checked one by one: each has its own conftest. Rigs are checked with what uses them.
types: $(VENV)/ready
	$(VENV)/bin/mypy
	for folder in $(filter-out tests/rigs/,$(sort $(dir $(wildcard tests/*/*.py)))); do
		echo "$$folder"
		$(VENV)/bin/mypy "$$folder"
	done

contracts: $(VENV)/ready
	$(VENV)/bin/lint-imports

# Supervisor in an environment of its own; NVRx in another, which finds torch in the training environment.
$(PEERS)/ready: $(VENV)/ready $(TRAIN_READY)
	$(call SET_UP_ALONE,$(PEERS))
	$(PYTHON) -m venv --clear "$(PEERS)/supervisor"
	"$(PEERS)/supervisor/bin/pip" install --quiet supervisor==4.3.0
	"$(TRAIN_PYTHON)" -m venv --clear "$(PEERS)/nvrx"
	purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
	"$(TRAIN_PYTHON)" -c "$$purelib" > "$$("$(PEERS)/nvrx/bin/python" -c "$$purelib")/training_environment.pth"
	"$(PEERS)/nvrx/bin/pip" install --quiet nvidia-resiliency-ext==0.4.1 \
		|| echo "NVRx has no build for this machine: its figures will be missing" >&2
	touch $@

bench: $(VENV)/ready $(TRAIN_READY) $(PEERS)/ready
	@$(VENV)/bin/python tests/bench/figures.py --train-python "$(TRAIN_PYTHON)" --peers "$(PEERS)" $(ARGS)

# The commands of the environments below are given to the gallery's own interpreter.
$(GALLERY)/ready: $(FOREIGN)/ready
	$(call SET_UP_ALONE,$(GALLERY))
	"$(FOREIGN)/bin/python" -m venv --clear "$(GALLERY)"
	purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
	site="$$("$(GALLERY)/bin/python" -c "$$purelib")"
	"$(FOREIGN)/bin/python" -c "$$purelib" > "$$site/a_foreign.pth"
	"$(TRAIN_PYTHON)" -c "$$purelib" > "$$site/b_training.pth"
	"$(GALLERY)/bin/pip" install --progress-bar off $(foreach p,$(GALLERY_PACKAGES),'$(p)')
	"$(GALLERY)/bin/pip" install --progress-bar off $(foreach p,$(GALLERY_BUILT),'$(p)')
	DS_ACCELERATOR=cpu DS_BUILD_OPS=0 "$(GALLERY)/bin/pip" install --progress-bar off --no-build-isolation \
		deepspeed==0.19.8 || echo "DeepSpeed cannot be built on this machine: its row will fail" >&2
	for script in "$(FOREIGN)/bin/fabric" "$(dir $(TRAIN_PYTHON))yolo" "$(dir $(TRAIN_PYTHON))torchrun"; do
		sed "1s|.*|#!$(GALLERY)/bin/python|" "$$script" > "$(GALLERY)/bin/$${script##*/}"
		chmod +x "$(GALLERY)/bin/$${script##*/}"
	done
	touch $@

gallery: $(VENV)/ready $(GALLERY)/ready
	@$(VENV)/bin/python tests/gallery/run_gallery.py --python "$(GALLERY)/bin/python" $(ARGS)

# The time of the newest entry of the Debian changelog dates what is generated: two builds of one checkout are equal.
wheel: export SOURCE_DATE_EPOCH = $(shell date -d "$$(sed -n 's/^ -- .*>  //p' systemd/package/debian/changelog | head -1)" +%s)
wheel: $(VENV)/ready
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(VENV)/bin/pip wheel --quiet --no-deps --wheel-dir dist .

deb: $(VENV)/ready
	@for program in dpkg-buildpackage dh; do
		command -v $$program >/dev/null || { echo "$$program is missing: apt install debhelper" >&2; exit 1; }
	done
	$(VENV)/bin/python systemd/package/build_deb.py dist --wheels "$(CACHE)/wheels"

deb-check: deb
	$(VENV)/bin/python tests/package/deb_check.py dist/rocm-supervisor_*.deb $(ARGS)

$(CACHE)/installers/ready:
	$(call SET_UP_ALONE,$(CACHE)/installers)
	$(PYTHON) -m venv --clear "$(CACHE)/installers"
	"$(CACHE)/installers/bin/pip" install --quiet uv pipx
	touch $@

tools-check: wheel $(CACHE)/installers/ready
	@$(VENV)/bin/python tests/package/tool_install.py dist/rocm_supervisor-*.whl \
		--uv "$(CACHE)/installers/bin/uv" --pipx "$(CACHE)/installers/bin/pipx"

new-user: deb
	$(VENV)/bin/python tests/package/new_user.py dist/rocm-supervisor_*.deb $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
