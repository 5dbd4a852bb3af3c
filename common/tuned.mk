# TUNED=1: the constants with which steps 05 and 06 are fastest on an H200, by HEAD_DIM; what is given beside it wins.
# TFLOP/s, measured on an H200, f16, no mask, B = 2, H = 16, S = 4096.
TUNED_32  = ROW_TILES=1# 228; ROW_TILES=2: 219
TUNED_64  = ROW_TILES=2# each fragment of K and V serves twice as many rows
TUNED_96  = ROW_TILES=2# 284; ROW_TILES=1: 257
TUNED_128 = ROW_TILES=2# as for 64
TUNED_192 = STAGES=1#    272; STAGES=2: 140: with one buffer a multiprocessor has room for two blocks
TUNED_256 = STAGES=1#    325; STAGES=2: 219: the same
