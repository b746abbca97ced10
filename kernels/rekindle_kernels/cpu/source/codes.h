// Rows of codes with scales, as in quantized safetensors: `(table[code] - zero) * scale + bias`, each step rounded.
//
// The numbers equal those of `quantized.py` bit for bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "vector.h"

namespace rekindle {
namespace {

typedef int32_t Integers __attribute__((vector_size(kLanes * 4)));

// Returns the nearest float16 number, ties to even, as a float.
inline float to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits & 0x80000000, size = bits & 0x7fffffff;
  uint32_t rounded;
  if (size >= 0x477ff000) {  // from 65520 on: infinity, or not a number
    rounded = size > 0x7f800000 ? 0x7fc00000 : 0x7f800000;
  } else if (size < 0x38800000) {  // below 2^-14: multiples of 2^-24, by an addition that rounds to them
    float positive;
    std::memcpy(&positive, &size, sizeof positive);
    const float shifted = positive + 0x1p-1f, back = shifted - 0x1p-1f;
    std::memcpy(&rounded, &back, sizeof rounded);
  } else {
    rounded = (size + 0xfff + ((size >> 13) & 1)) & ~uint32_t{0x1fff};
  }
  rounded |= sign;
  float result;
  std::memcpy(&result, &rounded, sizeof result);
  return result;
}

inline Vec to_half(Vec x) {
  const Integers bits = (Integers)x, size = bits & 0x7fffffff;
  const Integers normal = (Integers)(((Bits)size + 0xfff + (((Bits)size >> 13) & 1)) >> 13 << 13);
  const Integers small = (Integers)(((Vec)size + 0x1p-1f) - 0x1p-1f), infinity = Integers{} + 0x7f800000;
  Integers rounded = size < 0x38800000 ? small : normal;
  rounded = size >= 0x477ff000 ? infinity : rounded;
  rounded = size > 0x7f800000 ? infinity + 0x400000 : rounded;
  return (Vec)(rounded | (bits ^ size));
}

template <Rounding kRounding>
float rounded(float x) {
  if constexpr (kRounding == Rounding::kBfloat16) return widen(narrow(x));
  if constexpr (kRounding == Rounding::kHalf) return to_half(x);
  return x;
}

template <Rounding kRounding>
Vec rounded(Vec x) {
  if constexpr (kRounding == Rounding::kBfloat16) return (Vec)(narrow(x) << 16);
  if constexpr (kRounding == Rounding::kHalf) return to_half(x);
  return x;
}

// The tables with a computation, which is faster than a look-up: integers from a first one on, and E4M3.
enum class Form { kTable, kIntegers, kSigned, kE4M3 };

// Returns a number by its code, unless it is not a number.
inline float e4m3(uint32_t code) {
  const uint32_t bits = (code & 0x80) << 24 | (code & 0x7f) << 20;  // the number times 2^-120
  float small;
  std::memcpy(&small, &bits, sizeof small);
  return small * 0x1p120f;
}

inline Form form_of(const Codes& codes) {
  const int count = 1 << codes.bits;
  bool integers = true, is_signed = true, is_e4m3 = count == 256;
  for (int code = 0; code < count; ++code) {
    const float x = codes.table[code];
    integers &= x == codes.table[0] + static_cast<float>(code);
    is_signed &= x == static_cast<float>(code < count / 2 ? code : code - count);
    is_e4m3 &= (code & 0x7f) == 0x7f ? x != x : x == e4m3(static_cast<uint32_t>(code));
  }
  return integers ? Form::kIntegers : is_signed && count == 256 ? Form::kSigned : is_e4m3 ? Form::kE4M3 : Form::kTable;
}

// Stores numbers as bfloat16.
inline void put(uint16_t* to, Vec x) {
  const Bits bits = narrow(x);
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)bits));
#elif defined(__AVX2__)
  const __m256i halves = _mm256_packus_epi32((__m256i)bits, (__m256i)bits);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
#else
  const Halves halves = __builtin_convertvector(bits, Halves);
  std::memcpy(to, &halves, sizeof halves);
#endif
}

// Returns some bytes as integers.
inline Bits load_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
  return (Bits)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__AVX2__)
  return (Bits)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
  Bits bits;
  for (int lane = 0; lane < kLanes; ++lane) bits[lane] = from[lane];
  return bits;
#endif
}

// Returns the low and high halves of some bytes, in turn, as integers.
inline Bits load_nibbles(const uint8_t* from) {
  Bits bits, shifts;
  for (int lane = 0; lane < kLanes; ++lane) {
    uint32_t word = 0;
    std::memcpy(&word, from + lane / 8 * 4, kLanes < 8 ? 2 : 4);
    bits[lane] = word;
    shifts[lane] = static_cast<uint32_t>(lane % 8 * 4);
  }
  return (bits >> shifts) & 15;
}

inline Vec to_floats(Bits small) { return __builtin_convertvector((Integers)small, Vec); }

inline Vec e4m3(Bits codes) {
  const Vec numbers = (Vec)((codes & 0x80) << 24 | (codes & 0x7f) << 20) * splat(0x1p120f);
  return (Vec)((codes & 0x7f) == 0x7f ? Bits{} + 0x7fc00000 : (Bits)numbers);
}

// Returns the numbers of a row's codes from one on, without scales.
template <int kBits, Form kForm>
Vec numbers_at(const float* table, const uint8_t* row, int64_t i) {
  if constexpr (kForm == Form::kTable) {
    Vec numbers;
    for (int lane = 0; lane < kLanes; ++lane) {
      numbers[lane] = table[kBits == 8 ? row[i + lane] : row[(i + lane) / 2] >> (i + lane) % 2 * 4 & 15];
    }
    return numbers;
  }
  const Bits codes = kBits == 8 ? load_bytes(row + i) : load_nibbles(row + i / 2);
  if constexpr (kForm == Form::kE4M3) return e4m3(codes);
  if constexpr (kForm == Form::kSigned) return to_floats((codes ^ 0x80) - 0x80);
  return to_floats(codes) + table[0];
}

// Writes `count` numbers of a row from an input on, all of one group.
template <int kBits, Form kForm, Rounding kRounding>
void read_group(const Codes& codes, const uint8_t* row, int64_t at, int64_t begin, int64_t count, float* numbers) {
  const float scale = codes.scales[at], zero = codes.zeros ? codes.zeros[at] : 0;
  const float bias = codes.biases ? codes.biases[at] : 0;
  const auto scaled = [&](auto x) {
    if (codes.zeros) x = x - zero;
    x = rounded<kRounding>(x * scale);
    return codes.biases ? rounded<kRounding>(x + bias) : x;
  };
  int64_t i = 0;
  if (kBits == 8 || begin % 2 == 0) {
    for (; i + kLanes <= count; i += kLanes) {
      store(numbers + i, scaled(numbers_at<kBits, kForm>(codes.table, row, begin + i)));
    }
  }
  for (; i < count; ++i) {
    const int64_t place = begin + i;
    const int code = kBits == 8 ? row[place] : row[place / 2] >> place % 2 * 4 & 15;
    numbers[i] = scaled(codes.table[code]);
  }
}

// Writes `count` numbers of a row from an input on.
template <int kBits, Form kForm, Rounding kRounding>
void read_codes(const Codes& codes, int64_t row, int64_t begin, int64_t count, float* numbers) {
  const uint8_t* data = codes.data + row * codes.stride;
  for (int64_t done = 0; done < count;) {
    const int64_t group = (begin + done) / codes.group, end = least((group + 1) * codes.group - begin, count);
    const int64_t at = row * codes.groups + group;
    read_group<kBits, kForm, kRounding>(codes, data, at, begin + done, end - done, numbers + done);
    done = end;
  }
}

}  // namespace
}  // namespace rekindle
