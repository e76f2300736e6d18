# The commands of the project; `make` lists them. Everything built goes to build/ and target/.

PREFIX ?= /usr/local
BUILD := build/cmake
DIGITS := examples/data/digits.csv
OPTICKS := examples/data/opticks.txt.bz2
LIBRARY := $(BUILD)/kvstore/libkvstore.so
MAKEFLAGS += --no-print-directory

.PHONY: help build stage stage-local python extension wheel deb dist install header kernels site check test test-long \
	test-frameworks bench bench-peers bench-python bench-collectives bench-torch bench-lightgbm bench-mxnet \
	bench-jax pictures clean \
	demo demo-cpp demo-go demo-python demo-rust demo-torch demo-embedding demo-gpu demo-dist demo-bits

help: ## list these commands
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '  make %-16s %s\n' "$$name" "$$text"; done

build: ## build the library
	@bash scripts/stage.sh all build

stage: ## install it into build/stage, where tests and examples find it
	@bash scripts/stage.sh all

python: stage extension ## the same, with the extension of the Python package

# Beside the sources of the package.
extension:
	@bash scripts/extension.sh

# What the demos of local stores need, without the distributed half.
stage-local:
	@bash scripts/stage.sh local

demo demo-cpp demo-go demo-python demo-torch demo-embedding demo-gpu: \
	export KVSTORE_PREFIX := $(CURDIR)/build/stage-local

wheel: ## make a Python wheel for every Linux with glibc 2.28 or newer, in dist/
	@bash scripts/wheel.sh

deb: ## make the Debian packages of the library and the program, in dist/
	@bash scripts/deb.sh

dist: ## make all that a release has, in dist/: wheel, Debian packages, crates, Go module, site, checksums
	@bash scripts/dist.sh

# Does not build what is there: root, who may run this, need not have cargo.
install: ## install it into PREFIX (default /usr/local)
	@test -e $(LIBRARY) || $(MAKE) build
	cmake --install $(BUILD) --prefix $(PREFIX)

header: ## generate include/kvstore.h from src/capi
	KV_UPDATE_HEADER=1 cargo test --quiet --test header

kernels: ## compile the GPU kernels of kernels/ to src/device/ptx
	@bash scripts/kernels.sh

site: ## make the documentation site, in build/site
	@bash scripts/site.sh

check: ## check formats and lints
	@bash scripts/bootstrap.sh build checks go python
	@bash scripts/test.sh checks

test: ## run all tests
	@bash scripts/bootstrap.sh
	@bash scripts/test.sh all

test-long: ## run the tests that take hours
	@bash scripts/bootstrap.sh
	@bash scripts/test.sh long

test-frameworks: ## test the parts for PyTorch, MXNet, JAX, Ray, Hugging Face and LightGBM on the real frameworks
	@bash scripts/bootstrap.sh build python
	@bash scripts/test.sh frameworks

demo: stage-local ## train on handwritten digits, in C
	@mkdir -p target/demo
	@bash scripts/example.sh c train_digits $(DIGITS) target/demo/digits.svg

demo-cpp: stage-local ## the same in C++
	@bash scripts/example.sh cpp train_digits $(DIGITS)

demo-go: stage-local ## the same in Go
	@bash scripts/bootstrap.sh go
	@bash scripts/example.sh go train_digits $(DIGITS)

demo-python: stage-local extension ## the same in Python
	@bash scripts/bootstrap.sh python
	@bash scripts/example.sh python train_digits $(DIGITS)

demo-rust: ## the same in Rust
	@bash scripts/bootstrap.sh build
	@bash scripts/example.sh rust train_digits $(DIGITS)

demo-torch: stage-local extension ## PyTorch's own parameters and gradients through the store
	@bash scripts/bootstrap.sh python
	@bash scripts/example.sh python torch_digits $(DIGITS)

demo-embedding: stage-local extension ## word vectors of a book: pushes of rows beside whole tables
	@bash scripts/bootstrap.sh python
	@bash scripts/example.sh python embedding $(OPTICKS)

demo-gpu: stage-local ## the digits on up to four GPUs, compared with host memory
	@bash scripts/example.sh c train_digits_gpu $(DIGITS)

demo-dist: stage ## the digits with four workers and two servers, each a process
	@bash scripts/demo_dist.sh $(DIGITS) target/demo

demo-bits: python ## the same bits for 1, 2 and 4 workers, and where one flipped bit leads
	@bash scripts/bootstrap.sh python
	@bash scripts/demo_bits.sh $(DIGITS) target/demo/bits

# GROUP='lists half' measures some groups only; QUICK=yes only shows that everything runs, and writes
# into target/bench/performance.md.
bench: ## measure this machine, write docs/use/performance.md
	@bash scripts/bootstrap.sh build
	@rm -f target/bench/performance.md
	cargo build --release -p libkvstore-cli
	KVSTORE_PROGRAM=target/release/kvstore \
		cargo bench -p libkvstore --bench local --bench dist -- --page $(if $(QUICK),--quick) $(GROUP)

bench-peers: ## the same beside MXNet, numpy, gloo and UCX, where they can be installed
	@bash scripts/bootstrap.sh build
	@bash scripts/bench_peers.sh $(if $(QUICK),--quick)

bench-python: python ## measure Python beside C, numpy, PyTorch and DeepSpeed
	@bash scripts/bench_python.sh $(if $(QUICK),--quick)

bench-collectives: stage ## measure collective calls beside Open MPI
	@bash scripts/bench_collectives.sh

bench-torch: python ## measure kvstore.torch beside PyTorch's DistributedDataParallel and gloo
	@bash scripts/bench_torch.sh $(if $(QUICK),--quick)

bench-lightgbm: python ## measure kvstore.lightgbm beside LightGBM's own sockets
	@bash scripts/bench_framework.sh lightgbm $(if $(QUICK),--quick)

bench-mxnet: python ## measure kvstore.mxnet in Gluon's Trainer beside MXNet's own stores
	@bash scripts/bench_framework.sh mxnet $(if $(QUICK),--quick)

bench-jax: python ## measure kvstore.jax beside JAX's own collectives
	@bash scripts/bench_framework.sh jax $(if $(QUICK),--quick)

pictures: ## draw the tables of docs/use/frameworks with times beside the frameworks' own
	@python3 scripts/pictures.py

clean: ## remove everything that was built
	rm -rf build dist target
