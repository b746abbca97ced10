// Tiles of AMX: eight registers of up to 16 rows of 64 bytes.
//
// For each 32 inputs, a product of tiles adds the products of even inputs in order, those of odd inputs in order, then
// both sums, then the result so far. Each step is rounded to nearest, and denormal numbers are zeros. A row's bits are
// independent of the rows beside it.
//
// Where the compiler has no instructions for tiles, the reference of the same bits is used, in float32:
// tiles_reference.h.
#pragma once

#include "denormals.h"
#include "vector.h"

namespace {

constexpr int64_t kTileRows = 16;     // the most rows of a tile
constexpr int64_t kTileInputs = 32;   // bfloat16 numbers in a tile's row
constexpr int64_t kTileOutputs = 16;  // float32 numbers in a tile's row
constexpr int64_t kTileBytes = 64;    // of a row

// The configuration of the registers, as the hardware reads it. Registers 0 and 1 are results of the first rows, 2 and
// 3 of the second ones, 4 and 5 inputs of both, and 6 and 7 weights.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  TileShapes(int64_t first, int64_t second) {
    const int64_t wanted[8] = {first, first, second, second, first, second, kTileRows, kTileRows};
    for (int t = 0; t < 8; ++t) {
      bytes[t] = wanted[t] ? kTileBytes : 0;
      rows[t] = static_cast<uint8_t>(wanted[t]);
    }
  }
};
static_assert(sizeof(TileShapes) == 64, "the hardware reads 64 bytes");

}  // namespace

#if defined(__AMX_BF16__)
#include "tiles_amx.h"
#else
#include "tiles_reference.h"
#endif

namespace {

// The registers of a thread. Setting their shapes takes hundreds of cycles, so they stay until they change.
class Registers : public TileInstructions {
 public:
  ~Registers() {
    if (shapes_) release();
  }

  void shape(int64_t first, int64_t second) {
    const int64_t shapes = first * 32 + second;
    if (shapes_ != shapes) configure(TileShapes(first, second));
    shapes_ = shapes;
  }

 private:
  int64_t shapes_ = 0;
};

}  // namespace
