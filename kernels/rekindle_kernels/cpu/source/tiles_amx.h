// The instructions of AMX. See tiles.h.
//
// They are written in assembler, because GCC's intrinsics do not say that a load reads memory: it might put a store of
// the same numbers behind them.
#pragma once

namespace {

struct TileInstructions {
  static void configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory"); }

  static void release() { asm volatile("tilerelease" : : : "memory"); }

  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }

  // Loads rows that are `stride` bytes apart.
  template <int kTile>
  static void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }

  template <int kTile>
  static void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }

  // Adds the products of inputs, [rows][16 pairs], and weights, [16 pairs][16 outputs].
  template <int kSums, int kInputs, int kWeights>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kInputs), "i"(kWeights));
  }
};

}  // namespace
