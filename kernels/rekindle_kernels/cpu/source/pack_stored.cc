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

// One block of a file, with the scales of each group: the header for one output, and factors of each group.
struct FileBlock {
  const uint8_t* bytes;
  int kind;
  int64_t groups;

  // Returns the bytes before the codes: [header of the output].
  int header() const { return static_cast<int>(header_bytes(kStored[kind]) / kPanel); }

  const uint8_t* header_at() const { return kind == 7 ? bytes + 208 : bytes; }

  // Returns the code of an input of a group.
  int code(int64_t group, int i) const {
    const uint8_t* after = bytes + header();
    const auto nibble = [i](const uint8_t* from) { return i < 16 ? from[i] & 15 : from[i - 16] >> 4; };
    const auto fifth = [after, i] { return (after[i / 8] >> i % 8 & 1) << 4; };
    switch (kind) {
      case 0:
      case 1:
        return nibble(after);
      case 2:
      case 3:
        return nibble(after + 4) | fifth();
      case 4:
        return after[i];
      case 5:
        return bytes[16 + group / 2 * 32 + i] >> group % 2 * 4 & 15;
      case 6:
        return (bytes[48 + group / 2 * 32 + i] >> group % 2 * 4 & 15) | (bytes[16 + i] >> group & 1) << 4;
      case 7: {
        const int64_t half = group / 4, quarter = group % 4;
        const int low = bytes[half * 64 + quarter % 2 * 32 + i] >> quarter / 2 * 4 & 15;
        return low | (bytes[128 + half * 32 + i] >> quarter * 2 & 3) << 4;
      }
      default: {
        const int64_t place = group * kGroup + i;
        return kStored[kind].bits == 8 ? after[place] : after[place / 2] >> place % 2 * 4 & 15;
      }
    }
  }

  // Writes the two factors of a group, if it has any.
  void factors(int64_t group, uint8_t* first, uint8_t* second) const {
    if (kind == 7) {
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
    return kind < 8 ? kBytes[kind] : header() + groups * kGroup * kStored[kind].bits / 8;
  }
};

// Writes a file's block as one output's part of a panel's block.
void write_block(const FileBlock& block, uint8_t* to, int64_t lane) {
  const StoredKind kind = kStored[block.kind];
  const int width = block.header() > 2 && kind.scales != Scales::kHalfLeast && kind.scales != Scales::kGroups ? 4 : 2;
  for (int at = 0; at < block.header(); at += width)
    std::memcpy(to + at * kPanel + lane * width, block.header_at() + at, width);
  to += header_bytes(kind);
  for (int64_t group = 0; group < block.groups; ++group, to += group_bytes(kind)) {
    if (factor_bytes(kind)) block.factors(group, to + lane, to + kPanel + lane);
    uint8_t *high = to + factor_bytes(kind) + lane * 4, *codes = to + before_codes(kind) + lane * 4;
    for (int i = 0; i < kGroup; ++i) {
      const int quad = i / 4, j = i % 4, code = block.code(group, i);
      if (kind.bits == 8) {
        codes[quad * 4 * kPanel + j] = static_cast<uint8_t>(block.kind == kStoredKinds - 1 ? code ^ 128 : code);
        continue;
      }
      uint8_t& low = codes[quad % 4 * 4 * kPanel + j];
      low = static_cast<uint8_t>(quad < 4 ? (low & 0xf0) | (code & 15) : (low & 15) | (code & 15) << 4);
      // 5 bits: bit `quad` of byte j. 6 bits: two bits of byte j of the first four steps, or of the others.
      if (kind.bits == 5) high[j] = static_cast<uint8_t>((high[j] & ~(1 << quad)) | code >> 4 << quad);
      if (kind.bits == 6) {
        uint8_t& two = high[quad / 4 * 4 * kPanel + j];
        two = static_cast<uint8_t>((two & ~(3 << quad % 4 * 2)) | code >> 4 << quad % 4 * 2);
      }
    }
  }
}

int code_at(const StoredKind& kind, const uint8_t* group, int64_t lane, int i) {
  const int quad = i / 4, j = i % 4;
  const uint8_t *high = group + factor_bytes(kind) + lane * 4 + j, *codes = group + before_codes(kind) + lane * 4 + j;
  if (kind.bits == 8) return static_cast<int8_t>(codes[quad * 4 * kPanel]);
  const int low = codes[quad % 4 * 4 * kPanel] >> quad / 4 * 4 & 15;
  if (kind.bits == 5) return low | (*high >> quad & 1) << 4;
  if (kind.bits == 6) return low | (high[quad / 4 * 4 * kPanel] >> quad % 4 * 2 & 3) << 4;
  return low;
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
        const float code = static_cast<float>(code_at(kind, panel, lane, i) + kind.offset);
        float number = 0;
        switch (kind.scales) {
          case Scales::kHalf:
            number = code * half(header, 0);
            break;
          case Scales::kHalfLeast:
            number = code * half(header, 0) + half(header, 1);
            break;
          case Scales::kFloat:
            number = code * whole(header, 0);
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

// Writes rows of whole blocks as rows of a run, from its row `first` on.
extern "C" __attribute__((visibility("default"))) void rekindle_pack_stored(int64_t kind, int64_t groups,
                                                                            uint8_t* packed, int64_t first,
                                                                            const uint8_t* blocks, int64_t rows,
                                                                            int64_t in) {
  using namespace rekindle;
  const StoredKind& of = kStored[kind];
  const int64_t panel = panel_bytes(of, groups, in), step = header_bytes(of) + groups * group_bytes(of);
  for (int64_t row = 0; row < rows; ++row) {
    uint8_t* to = packed + (first + row) / kPanel * panel;
    if ((first + row) % kPanel == 0) populate(to, to + panel);
    for (int64_t begin = 0; begin < in; begin += groups * kGroup, to += step) {
      const FileBlock block{blocks, static_cast<int>(kind), groups};
      write_block(block, to, (first + row) % kPanel);
      blocks += block.size();
    }
  }
}
