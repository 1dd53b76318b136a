// Codes of GGUF files (`--weights own`): nibbles in the tiles of `codes.cuh`, with words of their
// own. Rust twin:
// `src/quant/file.rs`.
//
// value = scale * code - minimum, for 32 or 16 columns of a row. Words are [groups of 4
// tiles][g]{those of rows g and g + 8}.
#pragma once
#include "codes.cuh"

// How words hold scales and minima, as `words` in `backend::cuda::packed` numbers them. {} are rows
// g and g + 8.
enum OwnWords {
  HALVES,      // f16 scales [8 groups of 32]{}
  PAIRS,       // the same, then f16 minima, negated, [8]{}
  SUPER,       // f16 factors of scales {}, of minima {}; scale | low 2 bits of minimum << 6 [8]{}; the minima's upper 4 bits, [4]{} of
               // groups i and i + 4 in a byte
  SIXTEENTHS,  // f16 factors {}; i8 scales [16 runs of 16]{}
  // As our own codes have them, [4 tiles]{}, and with two of each row, [4 tiles]{}[2 halves]. They
  // are read by unpack.cu alone.
  TILES,
  TILE_HALVES
};

// Codes in P planes: of 4 bits, or with LOW bits more. A tile has a scale for 32 columns where
// codes have 4 bits, else for 16.
template <int P, int LOW = 4 * P - 4>
struct Own {
  static constexpr int LOW_BITS = LOW, PARTS = 2 * P, HALVES = 1, MOST_WORD_BYTES = 512;
  int words;
  __device__ __forceinline__ int pair_bytes() const {
    return words == PAIRS ? 64 : words == SIXTEENTHS ? 36 : words == TILES ? 16 : 32;
  }
  __device__ __forceinline__ int group_bytes() const { return 8 * pair_bytes(); }
  // The code of 0, where there are no minima.
  __device__ __forceinline__ float zero() const { return P == 1 ? 8.0f : words == SIXTEENTHS ? 32.0f : 128.0f; }
};

// A number below 2^23, in two instructions.
__device__ __forceinline__ float small_float(u32 x) { return __uint_as_float(0x4b000000u | x) - 8388608.0f; }

// Scales and minima of rows g and g + 8 in a run of 16 columns of a group of tiles, from the words
// of both rows.
template <int WORDS>
__device__ __forceinline__ void scale_run(float (&scale)[2], float (&minimum)[2], const u8* pair, int run, float zero) {
  if (WORDS == SUPER) {
    int i = run / 2;
    uint2 factors = *(const uint2*)pair;
    u32 low = *(const u16*)(pair + 8 + 2 * i), high = (u32) * (const u16*)(pair + 24 + i % 4 * 2) >> (i / 4 * 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      scale[h] = f16_value(factors.x >> (16 * h)) * small_float(low >> (8 * h) & 63);
      minimum[h] = f16_value(factors.y >> (16 * h)) * small_float((low >> (8 * h + 6) & 3) | (high >> (8 * h) & 15) << 2);
    }
  } else if (WORDS == SIXTEENTHS) {
    u32 factors = *(const u32*)pair, bytes = *(const u16*)(pair + 4 + 2 * run);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      scale[h] = f16_value(factors >> (16 * h)) * (small_float((bytes >> (8 * h) & 255) ^ 128) - 128.0f);
      minimum[h] = scale[h] * zero;
    }
  } else {
    u32 scales = *(const u32*)(pair + run / 2 * 4);
    u32 minima = WORDS == PAIRS ? *(const u32*)(pair + 32 + run / 2 * 4) : 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      scale[h] = f16_value(scales >> (16 * h));
      minimum[h] = WORDS == PAIRS ? -f16_value(minima >> (16 * h)) : scale[h] * zero;
    }
  }
}

// Calls FUNCTION<WORDS>, which the kind of words of an Own<P> decides.
#define BY_WORDS(P, code, FUNCTION, ...)                                             \
  if (code.words == SUPER) FUNCTION<SUPER>(__VA_ARGS__);                             \
  else if (P == 2 && code.words == SIXTEENTHS) FUNCTION<SIXTEENTHS>(__VA_ARGS__);    \
  else if (code.words == PAIRS) FUNCTION<PAIRS>(__VA_ARGS__);                        \
  else FUNCTION<HALVES>(__VA_ARGS__);

// Starts to copy the words of a group to shared memory, for all lanes of the warp.
template <int P>
__device__ __forceinline__ void copy_words(Own<P> code, u8* to, const u8* words, int group, int lane) {
  if (lane < code.group_bytes() / 16) copy_async(to + lane * 16, words + (u64)group * code.group_bytes() + lane * 16, true);
}
