// The kernels by tiles, over those of avx512_bf16. This file is compiled with AMX and for its reference, with
// REKINDLE_ISA as the set's name.
#include "attention_tiles.h"
#include "kernels.h"
#include "linear_tiles.h"
#include "stored_tiles.h"

#define REKINDLE_TEXT(name) #name
#define REKINDLE_QUOTED(name) REKINDLE_TEXT(name)

namespace rekindle {

namespace avx512_bf16 {
const Kernels* kernels();
void widen_stored(const Run&, const uint8_t*, int64_t, int64_t, uint16_t*);  // see widen.h
}  // namespace avx512_bf16

namespace REKINDLE_ISA {
namespace {

// Layers whose inputs are no whole tiles are left to the set below, for any number of rows.
void linear_by_tiles(const Linear& all, const LinearPart& part) {
  if (all.in % kTileInputs) return avx512_bf16::kernels()->linear_bf16(all, part);
  const NoDenormals mode;
  linear<BFloat16, linear_rows_by_tiles>(all, part);
}

// The same for attention.
void attend_by_tiles(const Attention& all, const AttentionPart& part) {
  if (all.head_dim % kTileInputs) return avx512_bf16::kernels()->attend_bf16(all, part);
  const NoDenormals mode;
  attend<Tiled>(all, part);
}

// Inputs of bfloat16 alone are multiplied by tiles.
void stored_by_tiles(const StoredLinear& stored, const LinearPart& part) {
  if (stored.most >= 0) return avx512_bf16::kernels()->linear_stored(stored, part);
  const NoDenormals mode;
  ::stored_by_tiles(stored, part, avx512_bf16::widen_stored);
}

}  // namespace

// Returns the kernels of this set.
const Kernels* kernels() {
  static const Kernels all = [] {
    Kernels some = *avx512_bf16::kernels();
    some.name = REKINDLE_QUOTED(REKINDLE_ISA);
    some.linear_bf16 = linear_by_tiles;
    some.linear_stored = stored_by_tiles;
    some.attend_bf16 = attend_by_tiles;
    return some;
  }();
  return &all;
}

}  // namespace REKINDLE_ISA
}  // namespace rekindle
