// Writes quantized blocks in the packed form, and reads numbers out of it, without fused operations.
#include <algorithm>
#include <cstring>

#include "blocks.h"
#include "pack.h"
#include "stored.h"

namespace rekindle {
namespace {

float float_at(const uint8_t* stored) {
  float number;
  std::memcpy(&number, stored, sizeof number);
  return number;
}

uint32_t word_at(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

constexpr uint32_t kNibbles = 0x0f0f0f0f;

// Returns four codes of 4 bits as bytes, from two bytes with low bits first.
uint32_t spread_nibbles(const uint8_t* bytes) {
  const uint32_t both = bytes[0] | static_cast<uint32_t>(bytes[1]) << 16;
  return (both | both << 4) & kNibbles;
}

// Returns four bits as the low bits of bytes.
uint32_t spread_bits(uint32_t bits) { return (bits * 0x00204081) & 0x01010101; }

// One block of a file of a kind, for one output.
template <int kKind>
struct FileBlock {
  static constexpr StoredKind kOf = kStored[kKind];
  const uint8_t* bytes;
  int64_t groups;

  // Returns the bytes of the scales before all groups.
  static constexpr int header() { return static_cast<int>(header_bytes(kOf) / kPanel); }

  const uint8_t* header_at() const { return kKind == 7 ? bytes + 208 : bytes; }

  // Returns four codes of a group as bytes.
  uint32_t codes(int64_t group, int quad) const {
    const uint8_t* after = bytes + header();
    if constexpr (kKind < 4) {
      const uint32_t low = word_at(after + (kKind < 2 ? 0 : 4) + quad % 4 * 4) >> quad / 4 * 4 & kNibbles;
      if constexpr (kKind < 2) return low;
      return low | spread_bits(after[quad / 2] >> quad % 2 * 4 & 15) << 4;
    } else if constexpr (kKind == 4) {
      return word_at(after + quad * 4);
    } else if constexpr (kKind == 5 || kKind == 6) {
      const uint8_t* pairs = bytes + (kKind == 5 ? 16 : 48) + group / 2 * 32;
      const uint32_t low = word_at(pairs + quad * 4) >> group % 2 * 4 & kNibbles;
      if constexpr (kKind == 5) return low;
      return low | (word_at(bytes + 16 + quad * 4) >> group & 0x01010101) << 4;
    } else if constexpr (kKind == 7) {
      const int64_t half = group / 4, quarter = group % 4;
      const uint32_t low = word_at(bytes + half * 64 + quarter % 2 * 32 + quad * 4) >> quarter / 2 * 4 & kNibbles;
      return low | (word_at(bytes + 128 + half * 32 + quad * 4) >> quarter * 2 & 0x03030303) << 4;
    } else {
      const int64_t place = group * kGroup + quad * 4;
      if constexpr (kOf.bits == 4) return spread_nibbles(after + place / 2);
      return word_at(after + place) ^ (kOf.offset == 128 ? 0x80808080 : 0);
    }
  }

  // Writes the two factors of a group, if it has any.
  void factors(int64_t group, uint8_t* first, uint8_t* second) const {
    if (kKind == 7) {
      *first = bytes[192 + 2 * group];
      *second = bytes[193 + 2 * group];
      return;
    }
    const uint8_t* low = bytes + 4;
    if (group < 4) {
      *first = low[group] & 63;
      *second = low[4 + group] & 63;
    } else {
      *first = static_cast<uint8_t>((low[4 + group] & 15) | low[group - 4] >> 6 << 4);
      *second = static_cast<uint8_t>(low[4 + group] >> 4 | low[group] >> 6 << 4);
    }
  }

  int64_t size() const {
    constexpr int64_t kBytes[] = {18, 20, 22, 24, 34, 144, 176, 210};
    if constexpr (kKind < 8) return kBytes[kKind];
    return header() + groups * kGroup * kOf.bits / 8;
  }

  // Writes the block as one output's part of a panel's block.
  void write(uint8_t* to, int64_t lane) const {
    const int width = header() > 2 && kOf.scales != Scales::kHalfLeast && kOf.scales != Scales::kGroups ? 4 : 2;
    for (int at = 0; at < header(); at += width) std::memcpy(to + at * kPanel + lane * width, header_at() + at, width);
    to += header_bytes(kOf);
    for (int64_t group = 0; group < groups; ++group, to += group_bytes(kOf)) {
      if (factor_bytes(kOf)) factors(group, to + lane, to + kPanel + lane);
      const auto put = [lane](uint8_t* place, int step, uint32_t word) {
        std::memcpy(place + (step * kPanel + lane) * 4, &word, sizeof word);
      };
      uint8_t *high = to + factor_bytes(kOf), *low = to + before_codes(kOf);
      uint32_t words[8];
      for (int quad = 0; quad < 8; ++quad) words[quad] = codes(group, quad);
      if constexpr (kKind == kFloat8)
        for (int i = 0; i < kGroup; ++i) low[i * kPanel + lane] = static_cast<uint8_t>(words[i / 4] >> i % 4 * 8);
      else if constexpr (kOf.bits == 8)
        for (int quad = 0; quad < 8; ++quad) put(low, quad, words[quad]);
      if constexpr (kOf.bits < 8)
        for (int quad = 0; quad < 4; ++quad)
          put(low, quad, (words[quad] & kNibbles) | (words[quad + 4] & kNibbles) << 4);
      // 5 bits: bit `quad` of byte j. 6 bits: two bits of byte j of the first four steps, or of the others.
      uint32_t rest[2] = {};
      for (int quad = 0; quad < 8; ++quad) {
        if constexpr (kOf.bits == 5) rest[0] |= (words[quad] >> 4 & 0x01010101) << quad;
        if constexpr (kOf.bits == 6) rest[quad / 4] |= (words[quad] >> 4 & 0x03030303) << quad % 4 * 2;
      }
      if constexpr (kOf.bits == 5 || kOf.bits == 6) put(high, 0, rest[0]);
      if constexpr (kOf.bits == 6) put(high, 1, rest[1]);
    }
  }
};

// Writes rows of whole blocks as rows of a run, from its row `first` on.
template <int kKind>
void write_rows(int64_t groups, uint8_t* packed, int64_t first, const uint8_t* blocks, int64_t rows, int64_t in) {
  constexpr StoredKind kOf = kStored[kKind];
  const int64_t panel = panel_bytes(kOf, groups, in), step = header_bytes(kOf) + groups * group_bytes(kOf);
  for (int64_t row = first; row < first + rows; ++row) {
    uint8_t* to = packed + row / kPanel * panel;
    if (row % kPanel == 0) populate(to, to + panel);
    for (int64_t begin = 0; begin < in; begin += groups * kGroup, to += step) {
      const FileBlock<kKind> block{blocks, groups};
      block.write(to, row % kPanel);
      blocks += block.size();
    }
  }
}

template <int kKind = 0>
void write_rows_of(int64_t kind, int64_t groups, uint8_t* packed, int64_t first, const uint8_t* blocks, int64_t rows,
                   int64_t in) {
  if (kind == kKind) return write_rows<kKind>(groups, packed, first, blocks, rows, in);
  if constexpr (kKind + 1 < kStoredKinds) write_rows_of<kKind + 1>(kind, groups, packed, first, blocks, rows, in);
}

// Returns the number of a code without its scale.
float code_at(const StoredKind& kind, const uint8_t* group, int64_t lane, int i) {
  const int quad = i / 4, j = i % 4;
  const uint8_t *high = group + factor_bytes(kind) + lane * 4 + j, *codes = group + before_codes(kind) + lane * 4 + j;
  if (kind.floats && kind.bits == 8) return e4m3_of(group[i * kPanel + lane]);
  if (kind.bits == 8) return static_cast<float>(static_cast<int8_t>(codes[quad * 4 * kPanel]) + kind.offset);
  int code = codes[quad % 4 * 4 * kPanel] >> quad / 4 * 4 & 15;
  if (kind.bits == 5) code |= (*high >> quad & 1) << 4;
  if (kind.bits == 6) code |= (high[quad / 4 * 4 * kPanel] >> quad % 4 * 2 & 3) << 4;
  return kind.table ? kind.table[code] : static_cast<float>(code + kind.offset);
}

}  // namespace

void read_output(const Run& run, int64_t in, const uint8_t* panel, int64_t lane, float* to, int64_t stride) {
  const StoredKind kind = kStored[run.kind];
  const auto half = [&](const uint8_t* header, int place) { return half_at(header + place * 2 * kPanel + 2 * lane); };
  const auto whole = [&](const uint8_t* header, int place) { return float_at(header + place * 4 * kPanel + 4 * lane); };
  for (int64_t begin = 0; begin < in;) {
    const uint8_t* header = panel;
    panel += header_bytes(kind);
    for (int64_t g = 0; g < run.groups; ++g, begin += kGroup, panel += group_bytes(kind)) {
      for (int i = 0; i < kGroup; ++i) {
        const float code = code_at(kind, panel, lane, i);
        float number = 0;
        switch (kind.scales) {
          case Scales::kHalf:
            number = code * half(header, 0);
            break;
          case Scales::kHalfLeast:
            number = code * half(header, 0) + half(header, 1);
            break;
          case Scales::kFloat:
            number = code * (whole(header, 0) * kind.unit);
            break;
          case Scales::kFloatPair:
            number = code * (whole(header, i / 16) * kind.unit);
            break;
          case Scales::kFloatZero:
            number = (code - whole(header, 1)) * whole(header, 0);
            break;
          case Scales::kFloatLeast:
            number = code * whole(header, 0) + whole(header, 1);
            break;
          case Scales::kGroups: {
            const float scale = half(header, 0) * static_cast<float>(panel[lane]);
            number = scale * code - half(header, 1) * static_cast<float>(panel[kPanel + lane]);
            break;
          }
          case Scales::kSixteenths: {
            const int8_t factor = static_cast<int8_t>(panel[i / 16 * kPanel + lane]);
            number = half(header, 0) * static_cast<float>(factor) * code;
            break;
          }
        }
        to[(begin + i) * stride] = number;
      }
    }
  }
}

}  // namespace rekindle

// Writes rows of whole blocks as rows of a run of this kind, from its row `first` on.
extern "C" __attribute__((visibility("default"))) void rekindle_pack_stored(int64_t kind, int64_t groups,
                                                                            uint8_t* packed, int64_t first,
                                                                            const uint8_t* blocks, int64_t rows,
                                                                            int64_t in) {
  rekindle::write_rows_of(kind, groups, packed, first, blocks, rows, in);
}
