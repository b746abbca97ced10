// Weights kept in quantized blocks, in the packed form of the linear layers.
//
// A weight is a sequence of runs of rows, each of one kind. A run has panels of `kPanel` outputs, and a panel has
// blocks: a header for each output, then groups of 32 inputs. A group has the factors of its own scales, then the high
// bits of codes of 5 or 6 bits, then 4 bits of all codes (or whole codes of 8 bits) as [step][32 outputs][4 bytes]. In
// 4 bits, byte j of step s has input 4 s + j in its low half and 16 + 4 s + j in the high one. So 4 bytes are an
// output's numbers for 4 inputs, as the integer products of all instruction sets take them. Codes that are floats are
// [32 inputs][32 outputs] instead.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace rekindle {

constexpr int64_t kGroup = 32;  // inputs in a group

// The numbers that a header and a group have for each output.
enum class Scales {
  kHalf,        // float16 scale
  kHalfLeast,   // float16 scale and least number
  kFloat,       // float32 scale
  kFloatZero,   // float32 scale and zero point
  kFloatLeast,  // float32 scale and least number
  kGroups,      // float16 factors of scales and of minima, which are subtracted; in a group, a byte for each
  kSixteenths,  // float16 factor of scales; in a group, a signed byte for the first 16 inputs and one for the others
};

struct StoredKind {
  int bits;
  Scales scales;
  int offset;           // added to a code; codes of 8 bits are signed
  bool floats = false;  // whether codes are E4M3
};

// By the numbers of `storage.py`.
constexpr StoredKind kStored[] = {
    {4, Scales::kHalf, -8},       {4, Scales::kHalfLeast, 0},    {5, Scales::kHalf, -16},        // Q4_0, Q4_1, Q5_0
    {5, Scales::kHalfLeast, 0},   {8, Scales::kHalf, 0},         {4, Scales::kGroups, 0},        // Q5_1, Q8_0, Q4_K
    {5, Scales::kGroups, 0},      {6, Scales::kSixteenths, -32},                                 // Q5_K, Q6_K
    {4, Scales::kFloat, -8},      {4, Scales::kFloatZero, 0},    {4, Scales::kFloatLeast, 0},    // int4
    {8, Scales::kFloat, 0},       {8, Scales::kFloatZero, 0},    {8, Scales::kFloatLeast, 128},  // int8
    {8, Scales::kFloat, 0, true},                                                                // float8
};
constexpr int kStoredKinds = sizeof(kStored) / sizeof(*kStored);
constexpr int kIntegerKinds = kStoredKinds - 1;  // the first kinds

// Returns the bytes of the header of a panel's block.
constexpr int64_t header_bytes(const StoredKind& kind) {
  switch (kind.scales) {
    case Scales::kHalf:
    case Scales::kSixteenths:
      return 2 * kPanel;
    case Scales::kFloatZero:
    case Scales::kFloatLeast:
      return 8 * kPanel;
    default:
      return 4 * kPanel;
  }
}

// Returns the bytes of a group before its high bits.
constexpr int64_t factor_bytes(const StoredKind& kind) {
  return kind.scales == Scales::kGroups || kind.scales == Scales::kSixteenths ? 2 * kPanel : 0;
}

// Returns the bytes of a group before its codes' low bits.
constexpr int64_t before_codes(const StoredKind& kind) {
  return factor_bytes(kind) + (kind.bits == 8 ? 0 : (kind.bits - 4) * 4 * kPanel);
}

constexpr int64_t group_bytes(const StoredKind& kind) {
  return before_codes(kind) + (kind.bits == 8 ? 32 : 16) * kPanel;
}

// Returns the bytes of a panel with so many groups in a block.
constexpr int64_t panel_bytes(const StoredKind& kind, int64_t groups, int64_t in) {
  return in / kGroup / groups * (header_bytes(kind) + groups * group_bytes(kind));
}

// Writes the float32 numbers of one output of a panel, at a distance of `stride`, with the roundings of the gguf
// library.
void read_output(const Run& run, int64_t in, const uint8_t* panel, int64_t lane, float* to, int64_t stride);

}  // namespace rekindle
