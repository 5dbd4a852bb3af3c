# TUNED=1: the constants with which step 06 is fastest on an H200, by HEAD_DIM (steps 01 to 05 take them too); what is given beside it wins.
# TFLOP/s of step06, measured on an H200, f16, no mask, B = 2, H = 16, S = 4096.
TUNED_32  = ROW_TILES=1# 233 (step05 237, and 249 with ROW_TILES=2)
TUNED_64  = ROW_TILES=2# 346; ROW_TILES=1: 299: each fragment of K and V serves twice as many rows
TUNED_96  = ROW_TILES=2# 304; ROW_TILES=1: 243
TUNED_128 = ROW_TILES=2# 384; ROW_TILES=1: 336; with WARPS=8 369
TUNED_192 = STAGES=1#    294; STAGES=2: 143: with one buffer a multiprocessor has room for two blocks
TUNED_256 = STAGES=1#    332; STAGES=2: 265: the same
