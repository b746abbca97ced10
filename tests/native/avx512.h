// What the kernels name of AVX-512, for x86-64 CPUs without it: this file comes before their sources, which are then
// compiled for AVX-512 as far as they can tell. Vectors of 64 bytes are the compiler's own business.
#pragma once

// Before the macros below are defined, as it would take the compiler to have those instructions.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define __AVX512F__ 1
#if defined(REKINDLE_WITH_BF16)
#define __AVX512BF16__ 1
#endif

namespace emulated {

typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Shorts __attribute__((vector_size(64)));
typedef uint8_t SixteenBytes __attribute__((vector_size(16)));
typedef uint16_t HalfShorts __attribute__((vector_size(32)));

inline __m512i load(const void* from) {
  __m512i x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline __m512i set(int x) { return (__m512i)(static_cast<uint32_t>(x) - Words{}); }

inline __m512i widen(uint32_t, __m256i halves) { return (__m512i) __builtin_convertvector((HalfShorts)halves, Words); }

inline __m512i widen_bytes(uint32_t, __m128i bytes) {
  return (__m512i) __builtin_convertvector((SixteenBytes)bytes, Words);
}

inline __m256i lower_halves(uint32_t, __m512i x) { return (__m256i) __builtin_convertvector((Words)x, HalfShorts); }

inline __m512i permute(__m512i a, __m512i places, __m512i b) {
  const Shorts from_a = (Shorts)a, from_b = (Shorts)b, place = (Shorts)places;
  Shorts to;
  for (int i = 0; i < 32; ++i) to[i] = place[i] & 32 ? from_b[place[i] & 31] : from_a[place[i] & 31];
  return (__m512i)to;
}

inline __m512 fused(__m512 a, __m512 b, __m512 c) {
  for (int i = 0; i < 16; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}

inline Words narrow(__m512 x) {
  Words bits = (Words)x;
  bits &= (bits & 0x7f800000u) != 0 ? Words{} - 1 : Words{} + 0x80000000u;  // denormal numbers are zeros
  return x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : (bits >> 16) | 0x40;
}

inline __m512bh narrow(__m512 upper, __m512 lower) {
  const Words high = narrow(upper), low = narrow(lower);
  Shorts to;
  for (int i = 0; i < 16; ++i) to[i] = static_cast<uint16_t>(low[i]), to[16 + i] = static_cast<uint16_t>(high[i]);
  return (__m512bh)to;
}

inline __m512 add_products(__m512 sum, __m512bh a, __m512bh b) {
  const Words x = (Words)a, y = (Words)b;
  sum = fused((__m512)(x & 0xffff0000u), (__m512)(y & 0xffff0000u), sum);
  return fused((__m512)(x << 16), (__m512)(y << 16), sum);
}

}  // namespace emulated

#define _mm512_loadu_si512 emulated::load
#define _mm512_fmadd_ps emulated::fused
#define _mm512_set1_epi32 emulated::set
#define _mm512_maskz_cvtepu16_epi32 emulated::widen
#define _mm512_maskz_cvtepu8_epi32 emulated::widen_bytes
#define _mm512_maskz_cvtepi32_epi16 emulated::lower_halves
#define _mm512_permutex2var_epi16 emulated::permute
#define _mm512_cvtne2ps_pbh emulated::narrow
#define _mm512_dpbf16_ps emulated::add_products
