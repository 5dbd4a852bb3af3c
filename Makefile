# The ladder of FlashAttention kernels: `make` lists what there is to do.
STEPS := $(sort $(patsubst %/attention.cu,%,$(wildcard step*/attention.cu)))
short  = $(firstword $(subst _, ,$1))# step02_online_softmax -> step02
.DEFAULT_GOAL := help

# ---- settings (make step02 HEAD_DIM=128 DTYPE=bf16) ----
HEAD_DIM  ?= 64
include common/tuned.mk
$(foreach constant,$(if $(filter 1,$(TUNED)),$(TUNED_$(HEAD_DIM))),$(eval $(subst =, ?= ,$(constant))))
BLOCK_N   ?= 64
WARPS     ?= 4
ROW_TILES ?= 1
STAGES    ?= 2
DTYPE     ?= f16
ARGS      ?=
NVCC      ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
ifeq ($(if $(filter default undefined,$(origin CC)),,$(strip $(CC))),)
override CC := $(if $(shell command -v gcc),gcc,cc)# make -R has none, an environment may hold an empty one
endif
HAVE_GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c GPU)
ifneq ($(filter-out 0,$(HAVE_GPU)),)
ARCH ?= native
BACKEND ?= $(if $(NVCC),cuda,cpu)
else
ARCH ?= sm_80
BACKEND ?= cpu
ifeq ($(BACKEND)$(MAKELEVEL),cpu0)
$(if $(NVCC),$(info nvcc is here but no GPU: building for the CPU executor (BACKEND=cuda compiles for a GPU elsewhere)))
endif
endif
# A setting is one word, without a blank: it stands in file names and in commands.
is_word = $(filter 1,$(words x$1x))
check = $(if $(and $(call is_word,$($1)),$(filter $2,$($1))),,$(error $1=$($1): $3))
head_dims = 32, 64, 96, 128, 192 or 256
without_low = $(subst 0,,$(subst 1,,$(subst 2,,$(subst 3,,$(subst 4,,$1)))))
without_digits = $(call without_low,$(subst 5,,$(subst 6,,$(subst 7,,$(subst 8,,$(subst 9,,$1))))))
is_number = $(and $1,$(if $(call without_digits,$1),,1),$(if $(filter-out 0,$(filter 0%,$1)),,1))# 010 is octal in C: 8
$(call check,BACKEND,cpu cuda,cpu or cuda)
$(call check,DTYPE,f16 bf16,f16 or bf16)
$(call check,HEAD_DIM,32 64 96 128 192 256,$(head_dims))
$(if $(BUG),$(if $(call is_word,$(BUG)),,$(error BUG=$(BUG): one name, of those that make bug-stepNN prints)))
$(if $(TUNED),$(call check,TUNED,1,1 (the constants of common/tuned.mk) or nothing))
$(foreach s,BLOCK_N WARPS ROW_TILES STAGES,$(if $(call is_number,$($s)),,$(error $s=$($s): a whole number, in decimal)))
$(if $(filter cuda,$(BACKEND)),$(if $(strip $(NVCC)),,$(error BACKEND=cuda: no nvcc here; give NVCC=, or BACKEND=cpu)))

include common/build.mk

.PHONY: help all docs probe run bugs compare test check-gpu sanitizer clean compile-commands ladder bench tuned FORCE $(foreach s,$(STEPS),$(call short,$s))
.SECONDARY:
.DELETE_ON_ERROR:

help:
	@echo 'make stepNN            build one step: $(foreach s,$(STEPS),$(call short,$s))'
	@echo 'make run               build and run the ladder on real data, and print its table (under a minute)'
	@echo 'make run-stepNN ARGS=  run one; ARGS="--help" lists its options'
	@echo 'make compare           each step against the reference and against the step before it'
	@echo 'make diff-stepNN       what changed from the step before'
	@echo 'make profile-stepNN    what each source line costs; ARGS=--by-cost sorts'
	@echo 'make sass-stepNN       registers, spills and the main loop of the code for a GPU (needs nvcc and cuobjdump, no GPU)'
	@echo 'make bugs              planted bugs, as exercises'
	@echo 'make bug-stepNN BUG=   run a step with one of them'
	@echo 'make layouts-stepNN    its layouts, beside the names that CuTe gives them; build/layout --help: the calculator'
	@echo 'make probe             run ldmatrix and mma on coordinates: who receives what'
	@echo 'make docs              draw docs/diagrams anew (needs Graphviz)'
	@echo 'make test              the tests (sets up a Python environment by itself)'
	@echo 'make check-gpu         every step and variant under the four tools of compute-sanitizer (needs a GPU)'
	@echo 'make bench             every step timed beside the ceilings and PyTorch (needs a GPU); ARGS=--quick'
	@echo 'make clean             remove build/'
	@echo 'TUNED=1                a setting: the constants that an H200 wants for HEAD_DIM; make tuned prints them'
	@echo 'settings: HEAD_DIM=$(HEAD_DIM) BLOCK_N=$(BLOCK_N) WARPS=$(WARPS) ROW_TILES=$(ROW_TILES) STAGES=$(STAGES) DTYPE=$(DTYPE) BACKEND=$(BACKEND) ARCH=$(ARCH) CC=$(CC)'

all: $(all_binaries)

# ---- one set of targets for each step ----
bugs_of = $(patsubst $1/bugs/%.patch,%,$(sort $(wildcard $1/bugs/*.patch)))
header = $(shell sed -n 's/^$1: //p' $2/bugs/$(BUG).patch)# what a planted bug needs to show itself; settings of the command line win
# "|| true" goes with them: that the run fails is what was asked for, that the build fails is not
bug_arguments = $(if $(filter $(filter --%,$1),$(ARGS)),,$1) $(ARGS)# beside ARGS=, unless these name one of them themselves
SASS_ARCH = $(filter-out native,$(if $(filter command environment,$(firstword $(origin ARCH))),$(ARCH),sm_90))
define step_rules
$(call short,$1): $(call binary,$1)
run-$(call short,$1): $(call binary,$1)
	@$(call binary,$1) $$(ARGS)
profile-$(call short,$1): $(call binary,$1)
	@$(call binary,$1) --profile $$(ARGS)
sass-$(call short,$1):
	@python3 common/sass.py build/cuda$$(SASS_ARCH:%=-%)/$$(BUG:%=bugs/%/)obj/$1$$(SUFFIX).cuda.o
bug-$(call short,$1):
	$$(if $$(filter-out $$(call bugs_of,$1),$$(BUG)),$$(error BUG=$$(BUG): $(call short,$1) has $$(call bugs_of,$1)))
	@$(if $(BUG),$$(call header,Settings,$1) $$(MAKE) -s run-$(call short,$1) ARGS='$$(subst ','\'',$$(call bug_arguments,$$(call header,Arguments,$1))) || true',\
	echo 'BUG= one of: $(call bugs_of,$1)')
diff-$(call short,$1):
	@$(if $2,git --no-pager diff --no-index --patience $2/attention.cu $1/attention.cu; \
	git diff --no-index --numstat $2/attention.cu $1/attention.cu | awk '{print $$$$1 + $$$$2 " lines changed: " $$$$1 " added and " $$$$2 " removed"}',\
	echo '$1 is the first step')
endef
previous = $(lastword $(filter-out $1,$(foreach s,$(STEPS),$(if $(filter $1,$(firstword $(sort $s $1))),,$s))))
$(foreach s,$(STEPS),$(eval $(call step_rules,$s,$(call previous,$s))))

# ---- layouts: the calculator, a step's own, what the instructions do, the chapters' pictures ----
build/layout: $(wildcard common/layout*.[ch])
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -Wall -Wextra $(filter %.c,$^) -o $@
layouts-step%: build/layout
	@build/layout step$* --head-dim $(HEAD_DIM) --block-n $(BLOCK_N) --warps $(WARPS) --row-tiles $(ROW_TILES) --stages $(STAGES) $(ARGS)
probe: $(BASE)/test_probe
	@$<
docs: build/layout
	docs/diagrams/draw

tuned:
	@echo '$(TUNED_$(HEAD_DIM))'

bugs:
	@awk '/^Q: / {split(FILENAME, part, "[/.]"); printf "%.6s %-27s %s\n", part[1], part[3], substr($$0, 4)}' \
	$(sort $(wildcard step*/bugs/*.patch))

# ---- the ladder: every step on one input, each with a line in a table ----
BENCH = $(if $(filter cuda,$(BACKEND)),--bench 20)
REAL := --q common/data/q.npy --k common/data/k.npy --v common/data/v.npy
LADDER_NAME :=# what build/ has of this ladder is removed first: no environment may name it
ifeq ($(filter ladder,$(MAKECMDGOALS))$(strip $(LADDER_NAME)),ladder)
$(error ladder: LADDER_NAME= is missing; make run and make compare give it)
endif
ladder: $(all_binaries) # LADDER_NAME=: of the table, LADDER_ARGS=: the input
	@rm -rf build/$(LADDER_NAME) && mkdir -p build/$(LADDER_NAME)
	@previous=; $(foreach s,$(STEPS),$(call binary,$s) $(LADDER_ARGS) $(BENCH) --row build/$(LADDER_NAME)/table.txt --json build/$(LADDER_NAME)/$s.json \
	--out build/$(LADDER_NAME)/$s.o.npy --lse build/$(LADDER_NAME)/$s.lse.npy $$previous || exit; echo; \
	previous="--previous-out build/$(LADDER_NAME)/$s.o.npy --previous-lse build/$(LADDER_NAME)/$s.lse.npy";) cat build/$(LADDER_NAME)/table.txt
run:
	@$(MAKE) --no-print-directory ladder HEAD_DIM=32 LADDER_NAME=run-real LADDER_ARGS='$(REAL)'
	@echo; $(MAKE) --no-print-directory ladder HEAD_DIM=64 LADDER_NAME=run-generated LADDER_ARGS='--heads 2 --seq-q 128 --seq-kv 128'
	@echo; echo 'real input: Q, K, V of a sentence encoder on a paragraph (common/data)'; cat build/run-real/table.txt
compare:
	@mkdir -p build && $(MAKE) --no-print-directory ladder LADDER_NAME=compare LADDER_ARGS='$(or $(ARGS),--heads 2 --seq-q 200 --seq-kv 328)' >build/compare.log 2>&1 \
	|| { cat build/compare.log; exit 1; }
	@cat build/compare/table.txt; if command -v python3 >/dev/null; then echo; python3 common/compare.py; fi

# ---- tests and the rest ----
PYTHON = $(shell python3 -c 'import numpy, pytest, hypothesis' 2>/dev/null && echo python3 || echo .venv/bin/python)
.venv/installed: tests/requirements.txt # not .venv/bin/python: that is a link to the system's, whose time would change
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@
installed := $(if $(filter test check-gpu,$(MAKECMDGOALS)),$(if $(filter .venv%,$(PYTHON)),.venv/installed))
test: $(installed)
	BACKEND=$(BACKEND) CC='$(CC)' $(PYTHON) -m pytest -q tests $(ARGS)
SANITIZE = compute-sanitizer --error-exitcode 1 --print-limit 3
SIX = $(filter %/step06_variants$(SUFFIX),$(all_binaries))
SIX_CASES = causal_random or packed_with_empty or pages[ or empty_splits# their arrays come from files
sanitizer:
	@command -v compute-sanitizer >/dev/null || { echo 'check-gpu: no compute-sanitizer on the PATH; it is part of the CUDA Toolkit' >&2; exit 2; }
check-gpu: sanitizer $(installed) all
	@for tool in memcheck racecheck initcheck synccheck; do \
	printf '%s --heads 2 --seq-q 65 --seq-kv 65\n' $(all_binaries) '$(SIX) --causal' '$(SIX) --causal --kv-heads 1 --splits 9' \
	'$(SIX) --window 20,3 --block-causal 8 --softcap 5' | while read -r run; do \
	$(SANITIZE) --tool $$tool $$run >build/sanitizer.log 2>&1 </dev/null && grep -q PASS build/sanitizer.log \
	|| { cat build/sanitizer.log; exit 1; }; echo "$$tool $$run: clean"; done || exit 1; \
	WRAPPER="$(SANITIZE) --tool $$tool" BACKEND=cuda $(PYTHON) -m pytest -q tests/test_variants.py -k '$(SIX_CASES)' $(ARGS) || exit 1; done
bench:
	@python3 common/bench.py $(ARGS)
validate-counters: # on a GPU machine: the executor's counters beside Nsight Compute's
	python3 common/measure.py counters
compile-commands:
	@{ echo '['; for f in common/*.c common/$(if $(filter cpu,$(BACKEND)),simt,cuda)/*.c $(STEPS:%=%/attention.cu); do \
	echo "$$comma{\"directory\": \"$(CURDIR)\", \"file\": \"$$f\", \"command\": \"$(CC) -x c $(HOST_FLAGS) $(SETTINGS) -c $$f\"}"; \
	comma=,; done; echo ']'; } >compile_commands.json && echo 'wrote compile_commands.json'
clean:
	rm -rf build
