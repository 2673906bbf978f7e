# One environment (.venv), one site (dist/html). `make help` lists the targets.
PYTHON ?= python3
RUNTIME ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
PROVIDER ?= auto
# The only page that `make html` runs, of all of them; what it needs is installed, no more.
PAGE ?=
WORKERS ?= 2
SPHINXOPTS ?=
# Where `make gpu-check` writes, and the seconds of a slice of it.
OUT ?= build/gpu-check
SLICE ?= 1080
# Wheels installed apart, for a machine whose Python has torch and no network.
GPU_SITE ?= $(HOME)/.gpu-site
ifeq ($(filter $(RUNTIME),cpu gpu),)
$(error RUNTIME=$(RUNTIME) is not known. Accepted: cpu, gpu)
endif

BIN := .venv/bin
INSTALLED := .venv/.installed-$(RUNTIME)
NEEDED := $(INSTALLED)
GROUP := docs
ifneq ($(and $(PAGE),$(filter html,$(MAKECMDGOALS))),)
PAGES := $(wildcard _doc/examples/*/plot_*.py)
SCRIPT := $(filter %/$(PAGE).py,$(PAGES))
ifeq ($(SCRIPT),)
$(error PAGE=$(PAGE) is not a page. Accepted: $(basename $(notdir $(PAGES))))
endif
EXTRAS := $(shell $(PYTHON) _doc/_ext/extras.py $(SCRIPT))
# All of it is enough, where it is installed.
NEEDED := $(or $(wildcard $(INSTALLED)),$(INSTALLED)-$(EXTRAS))
endif
BROWSER := .venv/.installed-browser
COVERAGE := .venv/.installed-coverage
FLOOR := build/floor
NIGHTLY := build/nightly
DEVICE := build/device
# A driver of Vulkan that computes on the CPU, as browsers bring one; without any, that of Debian's Chromium,
# unpacked: its package is found without root, by lists of its own.
DRIVERS := /usr/lib/chromium/vk_swiftshader_icd.json /usr/lib*/chromium-browser/vk_swiftshader_icd.json /opt/google/chrome/vk_swiftshader_icd.json /usr/share/vulkan/icd.d/lvp_icd*.json $(CURDIR)/$(DEVICE)/usr/lib/chromium/vk_swiftshader_icd.json
VULKAN ?= $(shell ls $(DRIVERS) 2>/dev/null | head -1)
APT = apt-get -qq -o Dir::State=$(CURDIR)/$(DEVICE)/apt -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache=$(CURDIR)/$(DEVICE)/apt
FAST = -m "not slow and not long and not site and not browser"
# Few examples of each property: all of them are drawn elsewhere.
FEW = --hypothesis-profile=fast
# What `make test-install` installs with the wheel; where `make nightly` finds ONNX Runtime, what it runs (all).
EXTRA ?=
INDEX_URL ?=
TESTS ?=
CASES ?=
# The pages whose claims `make claims` judges (all).
PAGES ?=
# What `make test-op-db` of another commit left, to compare with.
BEFORE ?=
# What `make test-op-db` runs of it: 2/4 is the second quarter.
SHARD ?= 1/1
# The folder of the published site, with its versions, its address, and the name of this version.
SITE ?= build/site
SITE_URL ?=
SITE_VERSION ?= dev
# What needs Sphinx, the cases of the latest onnx, long lists of cases, large models.
FLOOR_SKIPS := test_doc_ test_api test_optional test_page_custom_backend_101 test_pages test_browser test_built_site test_wheel test_node_tests operators/test_a operators/test_convolution operators/test_[eimnpqrs] test_cuda_kernels test_levels test_catalogue test_reference test_rules test_architectures test_own_models backend/kernels
# What is not the helper that pages use: its branches are counted apart.
STUDIES := */attribution/*,*/backend/*,*/cli/*,*/einsum/*,*/evaluator/*,*/observatory/*,*/operators/*,*/sweep/*,*/tuning/*
# A file, or a page, stays in one process: what is expensive is made once.
SHARED = -n $(WORKERS) --no-loadscope-reorder
PYTEST = $(BIN)/python -m pytest $(SHARED)
SPHINX = $(BIN)/python -m sphinx $(SPHINXOPTS)
export ORTMETER_PROVIDER = $(PROVIDER)
export ORTMETER_CACHE = $(CURDIR)/build/cache
# What torch compiles, else in the temporary folder.
export TORCHINDUCTOR_CACHE_DIR = $(CURDIR)/build/cache/inductor
# Packages are installed without bytecode: the first process that imports a module keeps it for the others.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install html html-noplot record gpu-check test test-slow test-long test-device test-op-db test-all coverage test-floor test-newest test-install nightly claims test-site test-browser publish packages lint bench notebooks serve clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14
install: $(INSTALLED) ## create .venv with everything, for RUNTIME=cpu or gpu
html: $(NEEDED) ## run the pages, or PAGE=plot_x, on PROVIDER=auto, cpu, cuda or cuda:1, build dist/html
	ORTMETER_PAGE=$(PAGE) $(SPHINX) -d build/doctrees$(NEEDED:$(INSTALLED)%=%) _doc dist/html
html-noplot: install ## build dist/html-noplot without running a page
	rm -rf build/noplot && mkdir -p build && cp -rp _doc build/noplot && rm -rf build/noplot/auto_examples && ORTMETER_PLOT=0 $(SPHINX) -d build/doctrees-noplot build/noplot dist/html-noplot
record: install ## run the pages on PROVIDER, keep what they measured, and their answers by date, in _doc/results
	mkdir -p build/recorded  # what an interrupted run has is not measured again
	for page in _doc/examples/*/plot_*.py; do kept=build/recorded/$$(basename $$page); test -e $$kept || { ORTMETER_RECORD=1 ORTMETER_RESULTS=_doc/results MPLBACKEND=agg $(BIN)/python $$page && touch $$kept; } || exit 1; done
	PYTHONPATH=_doc $(BIN)/python -c 'from pathlib import Path; from _ext.history import keep_answers; print(*keep_answers(Path("_doc/results")), sep="\n")'
	rm -r build/recorded
gpu-check: ## without .venv: compare the GPU with what is expected, record the pages; OUT, SLICE
	PYTHONPATH=$(if $(wildcard $(GPU_SITE)),$(GPU_SITE):)$(CURDIR)/src $(PYTHON) _benchmarks/gpu_check.py --out $(OUT) --seconds $(SLICE)
test: install ## run the tests that take seconds, every feature touched
	$(PYTEST) $(FAST) $(FEW)
test-slow: install ## run the tests that `make test` leaves out, and that need no site
	$(PYTEST) -m "slow and not long and not site and not browser"
test-long: html ## run the tests that take many minutes, those of the built site included
	$(PYTEST) -m long
test-device: install $(DEVICE)/.driver ## run the tests of a device: WebGPU on a driver in software, or say why not
	test -e $(DEVICE)/.installed || { $(BIN)/python -m pip install --quiet --no-deps --only-binary=:all: --target $(DEVICE) onnxruntime-ep-webgpu==0.4.0 && touch $(DEVICE)/.installed; } || true
	for library in $(wildcard $(dir $(VULKAN))libvulkan.so.1); do ln -sf $$library $(DEVICE)/; done
	PYTHONPATH=$(CURDIR)/$(DEVICE)$(PYTHONPATH:%=:%) LD_LIBRARY_PATH=$(CURDIR)/$(DEVICE)$(LD_LIBRARY_PATH:%=:%) $(VULKAN:%=VK_ICD_FILENAMES=%) ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1 $(BIN)/python -m pytest -m device _unittests/runtime/test_device.py _unittests/runtime/test_ortvalues.py
test-op-db: install ## compare the backend with torch on torch's own samples, in build/op-db
	$(BIN)/python _unittests/op_db.py --out build/op-db --workers $(WORKERS) --shard $(SHARD)
	$(BIN)/python _unittests/op_db.py --arguments --out build/op-arguments --workers $(WORKERS) --shard $(SHARD)
test-all: install ## run both `make test` and `make test-slow`
	$(PYTEST) -m "not long and not site and not browser"
claims: install ## judge the claims of the pages on their records, list those to look at, keep the verdicts
	$(BIN)/python _unittests/verdicts.py --write $(PAGES)
coverage: $(COVERAGE) ## run the tests of `make test`, show the lines and branches that they reach
	$(PYTEST) $(FAST) $(FEW) --cov --cov-report=term --cov-report=html:build/coverage
	$(BIN)/coverage json -q -o - --omit="$(STUDIES)" | $(BIN)/python -c "import json, sys; print('branches of the helper: {percent_branches_covered:.1f}%'.format(**json.load(sys.stdin)['totals']))"
test-floor: $(FLOOR)/.installed ## run the fast tests with the lowest versions that pyproject.toml declares
	$(FLOOR)/bin/python -m pytest $(SHARED) $(FAST) $(FLOOR_SKIPS:%=--ignore-glob="*/%*")
test-newest: build/newest/.installed ## the same with the newest versions that the registry has, PYTHON=python3.14
	build/newest/bin/python -m pytest $(SHARED) $(FAST) $(FLOOR_SKIPS:%=--ignore-glob="*/%*")
packages: ## build the wheel and the sdist in dist/packages, check them
	$(PYTHON) -m venv --clear build/packages && build/packages/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	build/packages/bin/python -m pip install --quiet --group release && rm -rf dist/packages
	build/packages/bin/python -m build --outdir dist/packages && build/packages/bin/python -m twine check --strict dist/packages/*
test-install: ## install the wheel of dist/packages alone, with EXTRA, and use it
	$(PYTHON) -m venv --clear build/install
	for wheel in dist/packages/*.whl; do build/install/bin/python -m pip install --quiet "$$wheel$(EXTRA:%=[%])" || exit 1; done
	cd build/install && bin/python $(CURDIR)/_benchmarks/check_install.py
nightly: $(NIGHTLY)/.installed ## compare the ONNX Runtime of INDEX_URL with the latest release: tests, operators
	$(if $(INDEX_URL),,$(error INDEX_URL is empty. Accepted: the address of an index of packages))
	$(NIGHTLY)/bin/python -m pip install --quiet --pre --no-deps --upgrade --force-reinstall --index-url $(INDEX_URL) onnxruntime
	mkdir -p $(NIGHTLY)-results && rm -f $(NIGHTLY)-results/tests.xml
	-$(NIGHTLY)/bin/python -m pytest $(SHARED) $(FAST) $(FLOOR_SKIPS:%=--ignore-glob="*/%*") --junitxml $(NIGHTLY)-results/tests.xml $(TESTS)
	$(NIGHTLY)/bin/ortmeter operators --runtime onnxruntime,installed $(CASES:%=--filter %) --json > $(NIGHTLY)-results/operators.json
	$(NIGHTLY)/bin/python _benchmarks/nightly.py $(NIGHTLY)-results
test-site: html ## run the tests of the built site
	$(PYTEST) -m "site and not long and not browser"
test-browser: html $(BROWSER) ## open every page of the built site in a browser
	$(PYTEST) -m "browser and not long"
publish: ## put dist/html into the published site of SITE, at the address SITE_URL, as SITE_VERSION
	rm -rf $(SITE)/$(SITE_VERSION) && mkdir -p $(SITE) && cp -r dist/html $(SITE)/$(SITE_VERSION)
	cp _doc/published/index.html dist/html/404.html $(SITE) && touch $(SITE)/.nojekyll
	sed 's|SITE_URL|$(SITE_URL)|' _doc/published/switcher.json > $(SITE)/switcher.json
lint: install ## check style, types and layers
	$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy && $(BIN)/lint-imports
bench: install ## time our functions and those of the peers, in at most 15 minutes
	$(BIN)/python _benchmarks/peers.py && $(BIN)/python _benchmarks/peers.py --write
notebooks: html ## put the notebooks of the site into dist/notebooks
	$(BIN)/python -m zipfile -e _doc/auto_examples/auto_examples_jupyter.zip dist/notebooks
serve: html ## serve the site on http://127.0.0.1:8000
	$(BIN)/python -m http.server 8000 --bind 127.0.0.1 -d dist/html
clean: ## remove the environment, the site and what the pages left
	rm -rf .venv build dist _doc/auto_examples _doc/api/generated

# The two wheels of ONNX Runtime install the same module: both leave before either comes.
$(INSTALLED): EXTRAS := gallery
$(INSTALLED): GROUP := dev
$(sort $(INSTALLED) $(NEEDED)): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python >= 3.11 is needed, PYTHON=$(PYTHON) is " + sys.version)'
	@echo "installing into .venv what constraints.txt lists for ortmeter[$(RUNTIME),$(EXTRAS)] and the group $(GROUP): at most 2.2 GB, 2 minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	rm -f .venv/.installed-* && $(BIN)/python -m pip uninstall --quiet --yes onnxruntime onnxruntime-gpu
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[$(RUNTIME),$(EXTRAS)]" --group $(GROUP)
	touch $@

# torch comes first, in the version of constraints.txt, which is its floor: uv leaves it alone.
# A later pyparsing warns about what matplotlib 3.10.0 calls.
$(FLOOR)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info[:2] == (3, 11) or sys.exit("Python 3.11, the lowest, is needed, PYTHON=$(PYTHON) is " + sys.version)'
	$(PYTHON) -m venv --clear $(FLOOR)
	$(FLOOR)/bin/python -m pip install --quiet --constraint constraints.txt torch uv
	$(FLOOR)/bin/uv pip install --quiet --python $(FLOOR)/bin/python --resolution lowest-direct --editable ".[cpu,gallery]" --group test "pyparsing==3.2.*"
	touch $@

# uv takes the torch of UV_TORCH_BACKEND=cpu; without it, that of the registry has the libraries of CUDA.
build/newest/.installed $(NIGHTLY)/.installed: build/%/.installed: pyproject.toml
	$(PYTHON) -m venv --clear build/$*
	build/$*/bin/python -m pip install --quiet uv
	build/$*/bin/uv pip install --quiet --python build/$*/bin/python --editable ".[cpu,gallery]" --group test
	touch $@

$(DEVICE)/.driver:
	mkdir -p $(DEVICE)/apt/lists/partial $(DEVICE)/apt/archives/partial
	test -n "$(VULKAN)" || { cd $(DEVICE) && $(APT) update && $(APT) download chromium-common && dpkg -x chromium-common_*.deb . && rm -r chromium-common_*.deb apt; } && touch $(CURDIR)/$@ || true

$(COVERAGE): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group coverage
	touch $@

# A browser of the system is taken first; without any, the tests are skipped and say why.
$(BROWSER): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group browser
	command -v chromium || command -v chromium-browser || command -v google-chrome || $(BIN)/python -m playwright install chromium || true
	touch $@
