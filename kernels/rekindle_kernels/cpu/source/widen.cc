// Widening of quantized blocks to bfloat16, for one instruction set. No product and sum may become one operation here:
// the numbers are those of `read_output`.
#include "widen.h"

#include "float8.h"
#include "quantized_tiles.h"
#include "shuffle.h"

namespace rekindle {
namespace {

constexpr int64_t kSoonBlocks = 2048;  // prefetch distance, in bytes

// Rounds the numbers of two inputs, and stores them as pairs.
inline void put_pairs(Vec first, Vec second, uint16_t* to) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
  alignas(64) static constexpr uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
  _mm512_storeu_si512(to, _mm512_maskz_permutexvar_epi16(0xffffffff, _mm512_load_si512(kOrder), both));
#else
  const Bits pairs = narrow(first) | narrow(second) << 16;
  std::memcpy(to, &pairs, sizeof pairs);
#endif
}

// A group of a panel of blocks, with its scales.
template <int kKind>
struct Group {
  static constexpr StoredKind kOf = kStored[kKind];
  Cursor<kKind, kParts> cursor;
  Factors<kParts> factors;
  Vec zero[kParts] = {};

  Group(const uint8_t* panel, int64_t groups, int64_t first) : cursor(panel, groups, 0) {
    if (const int64_t inside = first % groups_of(kOf, groups)) {
      cursor.seek(first - inside);
      read_zeros();
    }
    cursor = {panel, groups, 0};
    cursor.seek(first);
  }

  // Reads the zero points in the header at the cursor.
  void read_zeros() {
    if constexpr (kOf.scales == Scales::kFloatZero)
      for (int p = 0; p < kParts; ++p) zero[p] = (Vec)load_bits(cursor.at + (kPanel + p * kLanes) * 4);
  }

  void enter() {
    if (cursor.left == 0) read_zeros();
    cursor.enter();
    cursor.read_factors(factors);
  }

  // Returns the numbers of four inputs without their scales.
  void read(int p, int quad, Vec (&numbers)[4]) const {
    const uint8_t* place = cursor.at + before_codes(kOf) + p * kLanes * 4;
    if constexpr (kOf.table != nullptr) {
      const Bits words = load_bits(place + quad % 4 * 4 * kPanel) >> quad / 4 * 4;
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) numbers[j] = look_up_floats(kOf.table, words >> 8 * j);
      return;
    }
#if defined(__AVX512BW__)
    if constexpr (kOf.bits == 4) {
      const __m512 table = (__m512)(__builtin_convertvector((Signed)kCount + kOf.offset, Vec));
      const Bits words = load_bits(place + quad % 4 * 4 * kPanel) >> quad / 4 * 4;
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        numbers[j] = (Vec)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)(words >> 8 * j), table);
      return;
    }
#endif
    const Bits codes = kOf.bits == 8 ? load_bits(place + quad * 4 * kPanel) : cursor.quad(p, quad);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Signed whole = kOf.bits == 8 ? (Signed)(codes << (24 - 8 * j)) >> 24 : (Signed)(codes >> 8 * j & 255);
      numbers[j] = __builtin_convertvector(whole + kOf.offset, Vec);
    }
  }

  Vec scaled(Vec code, int p, int half) const {
    if constexpr (kOf.scales == Scales::kFloatZero) return (code - zero[p]) * factors.scale[0][p];
    if constexpr (halves_of(kOf) == 2) return factors.scale[half][p] * code;
    if constexpr (adds_of(kOf)) return factors.scale[0][p] * code + factors.added[p];
    return factors.scale[0][p] * code;
  }
};

template <int kKind>
void widen_blocks(const uint8_t* panel, int64_t of_block, int64_t first, int64_t groups, uint16_t* to) {
  Group<kKind> group(panel, of_block, first);
  for (int64_t i = 0; i < groups; ++i, to += kGroup * kPanel) {
    group.enter();
    for (int64_t line = 0; line < group_bytes(kStored[kKind]); line += 64)
      __builtin_prefetch(group.cursor.at + kSoonBlocks + line);
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p)
#pragma GCC unroll 8
      for (int quad = 0; quad < 8; ++quad) {
        Vec numbers[4];
        group.read(p, quad, numbers);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) numbers[j] = group.scaled(numbers[j], p, quad / 4);
        uint16_t* pairs = to + (2 * quad * kPanel + p * kLanes) * 2;
        put_pairs(numbers[0], numbers[1], pairs);
        put_pairs(numbers[2], numbers[3], pairs + 2 * kPanel);
      }
    group.cursor.next();
  }
}

inline void widen_floats(const uint8_t* panel, int64_t of_block, int64_t first, int64_t groups, uint16_t* to) {
  FloatCursor cursor(panel, of_block);
  cursor.seek(first);
  for (int64_t i = 0; i < groups; ++i) {
    cursor.enter();
    for (int pair = 0; pair < kGroup / 2; ++pair, to += 2 * kPanel) {
      Vec even[kParts], odd[kParts];
      cursor.read(2 * pair, even);
      cursor.read(2 * pair + 1, odd);
      for (int p = 0; p < kParts; ++p) put_pairs(even[p], odd[p], to + p * kLanes * 2);
    }
    cursor.next();
  }
}

template <int kKind = 0>
void widen_of(const Run& run, const uint8_t* panel, int64_t first, int64_t groups, uint16_t* to) {
  if constexpr (kKind != kFloat8)
    if (run.kind == kKind) return widen_blocks<kKind>(panel, run.groups, first, groups, to);
  if constexpr (kKind + 1 < kStoredKinds) widen_of<kKind + 1>(run, panel, first, groups, to);
}

}  // namespace

namespace REKINDLE_ISA {

void widen_stored(const Run& run, const uint8_t* panel, int64_t first, int64_t groups, uint16_t* to) {
  if (run.kind == kFloat8) return widen_floats(panel, run.groups, first, groups, to);
  widen_of(run, panel, first, groups, to);
}

}  // namespace REKINDLE_ISA
}  // namespace rekindle
