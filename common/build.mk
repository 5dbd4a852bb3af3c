# How a step is compiled: flags, where objects lie, and the rules that make them.  Included by the Makefile.

# ---- flags ----
IS_CLANG := $(findstring clang,$(shell $(CC) --version 2>/dev/null))
NATIVE   := $(shell for f in -march=native -mcpu=native; do $(CC) $$f -E -x c /dev/null >/dev/null 2>&1 && echo $$f && break; done)
CFLAGS   ?= -O2
# NaN and infinity are results here: what denies them is left out.
HOST_FLAGS   = -std=gnu11 $(filter-out -ffast-math -ffinite-math-only,$(CFLAGS:-Ofast=-O3)) $(NATIVE) -g -Wall -Wextra -MMD -MP -U_FORTIFY_SOURCE
SETTINGS     = -DHEAD_DIM=$(HEAD_DIM) -DBLOCK_N=$(BLOCK_N) -DWARPS=$(WARPS) -DROW_TILES=$(ROW_TILES) \
               -DSTAGES=$(STAGES) -DELEMENT_BF16=$(if $(filter bf16,$(DTYPE)),1,0)
# A kernel as C: accesses stay as wide and as many as the source says (common/simt/observer.c counts them).
ifneq ($(IS_CLANG),)
KERNEL_FLAGS  = $(HOST_FLAGS) -fno-strict-aliasing -fno-optimize-sibling-calls -fno-vectorize -fno-slp-vectorize -Wno-unknown-pragmas \
                -fno-builtin-memcpy -fno-builtin-memset \
                -gdwarf-4# addr2line loses inlined calls of clang's version 5: a report would name ptx.h, not the kernel's line
OBSERVE_FLAGS = -fsanitize=thread -mllvm -tsan-instrument-func-entry-exit=0 -mllvm -tsan-instrument-read-before-write=1
else
KERNEL_FLAGS  = $(HOST_FLAGS) -fno-strict-aliasing -fno-optimize-sibling-calls -fno-tree-sra -fno-tree-vectorize \
                -fno-tree-slp-vectorize -fno-store-merging -fno-tree-loop-distribute-patterns
OBSERVE_FLAGS = -fsanitize=thread --param tsan-instrument-func-entry-exit=0
endif
PLAIN_FLAGS = -Dmain=unobserved_main
LINK_FLAGS  = $(if $(filter Darwin,$(shell uname)),,-no-pie)
PIE_FLAGS   = $(if $(filter Darwin,$(shell uname)),,-fno-pie)
GENCODE     = $(if $(filter native,$(ARCH)),-arch=native,-gencode arch=compute_$(ARCH:sm_%=%),code=$(ARCH))
NVCC_FLAGS  = -O3 -g -lineinfo $(GENCODE) -Xcompiler -Wall,-Wextra -MMD -MP
CUDA_HOME   = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))

# ---- files: different settings never share an object ----
CONSTANTS = $(if $(filter-out 64,$(BLOCK_N)),_n$(BLOCK_N))$(if $(filter-out 4,$(WARPS)),_w$(WARPS))$(if $(filter-out 1,$(ROW_TILES)),_r$(ROW_TILES))$(if $(filter-out 2,$(STAGES)),_s$(STAGES))
SUFFIX = _d$(HEAD_DIM)_$(DTYPE)$(CONSTANTS)
BASE   = build/$(BACKEND)$(if $(filter cuda,$(BACKEND)),$(if $(filter-out native,$(ARCH)),-$(ARCH)))
OUT    = $(BASE)$(if $(BUG),/bugs/$(BUG))
SRC    = $(if $(BUG),$(OUT)/)# a planted bug: the kernel with stepNN/bugs/BUG.patch applied
COMMON = $(patsubst common/%.c,$(BASE)/obj/%.o,$(wildcard common/main.c common/inputs.c common/options.c common/result.c common/reference.c common/npy.c \
         $(if $(filter cpu,$(BACKEND)),common/simt/*.c,common/cuda/*.c))) $(if $(filter cuda,$(BACKEND)),$(BASE)/obj/cuda/flush.o)
binary = $(OUT)/$1$(SUFFIX)
all_binaries = $(foreach s,$(STEPS),$(call binary,$s))

# ---- rules ----
# One file that changes when the compiler or its flags do; every object depends on it.
FLAGS_NOW = $(CC) $(HOST_FLAGS) $(KERNEL_FLAGS) $(OBSERVE_FLAGS) $(if $(filter cuda,$(BACKEND)),$(NVCC) $(NVCC_FLAGS))
$(BASE)/flags: FORCE
	@mkdir -p $(@D); echo '$(FLAGS_NOW)' | cmp -s - $@ || echo '$(FLAGS_NOW)' >$@

$(BASE)/obj/%.o: common/%.c $(BASE)/flags
	@mkdir -p $(@D)
	$(CC) $(HOST_FLAGS) $(PIE_FLAGS) $(if $(filter cuda,$(BACKEND)),-I$(CUDA_HOME)/include) -c $< -o $@

ifeq ($(BACKEND),cpu)
$(OUT)/obj/%$(SUFFIX).observed.o: $(SRC)%/attention.cu $(BASE)/flags
	@mkdir -p $(@D)
	$(CC) -x c $(KERNEL_FLAGS) $(PIE_FLAGS) $(SETTINGS) $(OBSERVE_FLAGS) -I$* -c $< -o $@
$(OUT)/obj/%$(SUFFIX).plain.o: $(SRC)%/attention.cu $(BASE)/flags
	@mkdir -p $(@D)
	$(CC) -x c $(KERNEL_FLAGS) $(PIE_FLAGS) $(SETTINGS) $(PLAIN_FLAGS) -I$* -c $< -o $@
$(OUT)/%$(SUFFIX): $(OUT)/obj/%$(SUFFIX).observed.o $(OUT)/obj/%$(SUFFIX).plain.o $(COMMON)
	$(CC) $(LINK_FLAGS) $^ -o $@ -lm -lpthread $(if $(filter Darwin,$(shell uname)),,-ldl)
$(BASE)/obj/test_%.o: tests/kernels/%.cu $(BASE)/flags
	@mkdir -p $(@D)
	$(CC) -x c $(KERNEL_FLAGS) $(PIE_FLAGS) $(SETTINGS) $(OBSERVE_FLAGS) -c $< -o $@
$(BASE)/test_%: $(BASE)/obj/test_%.o $(filter $(BASE)/obj/simt/%,$(COMMON))
	$(CC) $(LINK_FLAGS) $^ -o $@ -lm -lpthread $(if $(filter Darwin,$(shell uname)),,-ldl)
else
$(OUT)/obj/%$(SUFFIX).cuda.o: $(SRC)%/attention.cu $(BASE)/flags
	@mkdir -p $(@D)
	$(NVCC) -x cu $(NVCC_FLAGS) $(SETTINGS) -I$* -c $< -o $@
$(OUT)/%$(SUFFIX): $(OUT)/obj/%$(SUFFIX).cuda.o $(COMMON)
	$(NVCC) $(GENCODE) -Xlinker -no-pie $^ -o $@ -lpthread
$(BASE)/obj/test_%.o: tests/kernels/%.cu $(BASE)/flags
	@mkdir -p $(@D)
	$(NVCC) -x cu $(NVCC_FLAGS) $(SETTINGS) -c $< -o $@
$(BASE)/test_%: $(BASE)/obj/test_%.o $(filter $(BASE)/obj/cuda/%,$(COMMON))
	$(NVCC) $(GENCODE) -Xlinker -no-pie $^ -o $@ -lpthread
$(BASE)/obj/%.o: common/%.cu $(BASE)/flags
	@mkdir -p $(@D)
	$(NVCC) -x cu $(NVCC_FLAGS) -c $< -o $@
$(BASE)/ceilings: $(BASE)/obj/cuda/ceilings.o $(BASE)/obj/cuda/backend.o $(BASE)/obj/cuda/flush.o
	$(NVCC) $(GENCODE) -Xlinker -no-pie $^ -o $@
endif
$(BASE)/test_probe: $(BASE)/obj/layout.o $(BASE)/obj/layout_maps.o
-include $(wildcard $(BASE)/obj/*.d $(BASE)/obj/*/*.d $(OUT)/obj/*.d)
ifneq ($(BUG),)
$(OUT)/%/attention.cu: %/attention.cu %/bugs/$(BUG).patch $(wildcard step*/*.h)
	@mkdir -p $(@D)
	file=$$(sed -n 's,^+++ b/,,p' $(word 2,$^)); patch -s -o $(@D)/$$file $*/$$file $(word 2,$^) && \
	if [ $$file = attention.cu ]; then rm -f $(@D)/*.h; else cp $< $@; fi
endif
