# TUNED=1: the constants with which step 06 is fastest on an H200, by HEAD_DIM (steps 01 to 05 take them too); what is given beside it wins.
# TFLOP/s of step06, measured on an H200, f16, no mask, B = 2, H = 16, S = 4096.
TUNED_32  = ROW_TILES=2 BLOCK_N=128# 243; the defaults: 233; ROW_TILES=2 alone: 233
TUNED_64  = ROW_TILES=2# 345; ROW_TILES=1: 300: each fragment of K and V serves twice as many rows
TUNED_96  = ROW_TILES=2# 305; ROW_TILES=1: 242
TUNED_128 = ROW_TILES=2# 389; ROW_TILES=1: 336, and 326 with WARPS=8
TUNED_192 = STAGES=1#    293; STAGES=2: 145: with one buffer a multiprocessor has room for two blocks
TUNED_256 = STAGES=1#    332; STAGES=2: 267: the same
