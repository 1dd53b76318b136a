// The decode epilogue of pages with bounds: instances of decode_epilogue.cuh.
#include "decode_epilogue.cuh"

#define DECODE_EPILOGUE(codec, Codec)                                                                 \
  KERNEL __launch_bounds__(32 * (MAX_GROUP + 3)) decode_epilogue_pages_##codec(DecodeParams params) { \
    decode_epilogue<Codec, WithPages>(params);                                                        \
  }
FOR_EACH_CODEC(DECODE_EPILOGUE)
