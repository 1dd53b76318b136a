// Decode epilogue under a policy with scores: decode_epilogue.cuh, with place_by_scores.cuh for slots. CPU twins:
// `backend::cpu::attention::in_order`, `backend::cpu::kv::put_by_scores`.
#include "decode_epilogue.cuh"

// One block to an SM: ptxas would spill registers for a second one.
#define DECODE_EPILOGUE_SCORES(codec, Codec)                                                              \
  KERNEL __launch_bounds__(32 * (MAX_GROUP + 3), 1) decode_epilogue_scores_##codec(DecodeParams params) { \
    decode_epilogue<Codec, WithScores>(params);                                                           \
  }
FOR_EACH_CODEC(DECODE_EPILOGUE_SCORES)
