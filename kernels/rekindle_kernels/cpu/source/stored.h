// Weights kept in quantized blocks, in the packed form of the linear layers.
//
// A weight is a sequence of runs of rows, each of one kind. A run has panels of `kPanel` outputs, and a panel has
// blocks: a header for each output, then groups of 32 inputs. A group has the factors of its own scales, then the high
// bits of codes of 5 or 6 bits, then 4 bits of all codes (or whole codes of 8 bits) as [step][32 outputs][4 bytes]. In
// 4 bits, byte j of step s has input 4 s + j in its low half and 16 + 4 s + j in the high one. So 4 bytes are an
// output's numbers for 4 inputs, as the integer products of all instruction sets take them. Floats of 8 bits are
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
  kFloatPair,   // float32 scale of the first 16 inputs, and one of the others
  kGroups,      // float16 factors of scales and of minima, which are subtracted; in a group, a byte for each
  kSixteenths,  // float16 factor of scales; in a group, a signed byte for the first 16 inputs and one for the others
};

// Numbers of codes of 4 bits.
constexpr float kE2M1[] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};  // in halves
constexpr float kNf4[] = {
    -1,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1,
};
constexpr float kFp4[] = {
    0,     1 / 192.0f,  2 / 3.0f,  1,  1 / 3.0f,  0.5f,  1 / 6.0f,  0.25f,
    -0.0f, -1 / 192.0f, -2 / 3.0f, -1, -1 / 3.0f, -0.5f, -1 / 6.0f, -0.25f,
};

struct StoredKind {
  int bits;
  Scales scales;
  int offset;                    // added to a code; codes of 8 bits are signed
  bool floats = false;           // whether codes are multiplied as floats: E4M3 in 8 bits
  const float* table = nullptr;  // the numbers of codes of 4 bits; null for consecutive integers
  float unit = 1;                // of the numbers of codes
};

// By the numbers of `storage.py`.
constexpr StoredKind kStored[] = {
    {4, Scales::kHalf, -8},                            // Q4_0
    {4, Scales::kHalfLeast, 0},                        // Q4_1
    {5, Scales::kHalf, -16},                           // Q5_0
    {5, Scales::kHalfLeast, 0},                        // Q5_1
    {8, Scales::kHalf, 0},                             // Q8_0
    {4, Scales::kGroups, 0},                           // Q4_K
    {5, Scales::kGroups, 0},                           // Q5_K
    {6, Scales::kSixteenths, -32},                     // Q6_K
    {4, Scales::kFloat, -8},                           // int4
    {4, Scales::kFloatZero, 0},                        // int4:zero
    {4, Scales::kFloatLeast, 0},                       // int4:least
    {8, Scales::kFloat, 0},                            // int8
    {8, Scales::kFloatZero, 0},                        // int8:zero
    {8, Scales::kFloatLeast, 128},                     // int8:least
    {4, Scales::kFloat, -12, false, kE2M1, 0.5f},      // float4
    {4, Scales::kFloatPair, -12, false, kE2M1, 0.5f},  // float4:16
    {8, Scales::kFloat, 0, true},                      // float8
    {4, Scales::kFloat, 0, true, kNf4},                // nf4
    {4, Scales::kFloat, 0, true, kFp4},                // fp4
};
constexpr int kStoredKinds = sizeof(kStored) / sizeof(*kStored);
constexpr int kIntegerKinds = kStoredKinds - 3;  // the first kinds
constexpr int kFloat8 = kIntegerKinds;           // the kind with codes of E4M3

// Returns the bytes of the header of a panel's block.
constexpr int64_t header_bytes(const StoredKind& kind) {
  switch (kind.scales) {
    case Scales::kHalf:
    case Scales::kSixteenths:
      return 2 * kPanel;
    case Scales::kFloatZero:
    case Scales::kFloatLeast:
    case Scales::kFloatPair:
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
