// Tiles in float32, with the bits of AMX: the definition of its sums, for machines without it. See tiles.h.
//
// `NoDenormals` must be alive, except for loads and stores.
#pragma once

namespace {

class TileInstructions {
 public:
  void configure(const TileShapes& shapes) {
    for (int t = 0; t < 8; ++t) rows_[t] = shapes.rows[t];
  }

  void release() {}

  template <int kTile>
  void zero() {
    std::memset(numbers_[kTile], 0, sizeof numbers_[kTile]);
  }

  template <int kTile>
  void load(const void* from, int64_t stride) {
    const char* at = static_cast<const char*>(from);
    for (int64_t row = 0; row < rows_[kTile]; ++row) std::memcpy(numbers_[kTile][row], at + row * stride, kTileBytes);
  }

  template <int kTile>
  void store(void* to, int64_t stride) const {
    char* at = static_cast<char*>(to);
    for (int64_t row = 0; row < rows_[kTile]; ++row) std::memcpy(at + row * stride, numbers_[kTile][row], kTileBytes);
  }

  template <int kSums, int kInputs, int kWeights>
  void multiply() {
    int64_t row = 0;
    for (; row + kTogether <= rows_[kSums]; row += kTogether)
      add_rows<kTogether>(numbers_[kInputs] + row, numbers_[kWeights], numbers_[kSums] + row);
    for (; row < rows_[kSums]; ++row) add_rows<1>(numbers_[kInputs] + row, numbers_[kWeights], numbers_[kSums] + row);
  }

 private:
  using Row = uint32_t[kTileOutputs];
  static constexpr int kTogether = 4;  // rows in registers

  template <int kRows>
  static void add_rows(const Row* x, const Row* weights, Row* sums) {
    for (int64_t column = 0; column < kTileOutputs; column += kLanes) {
      Vec even[kRows] = {}, odd[kRows] = {};
      for (int pair = 0; pair < kTileInputs / 2; ++pair) {
        Bits both;
        std::memcpy(&both, weights[pair] + column, sizeof both);
        const Vec first = (Vec)(both << 16), second = (Vec)(both & 0xffff0000u);
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row) {
          even[row] = fused(first, (Vec)((x[row][pair] << 16) - Bits{}), even[row]);
          odd[row] = fused(second, (Vec)((x[row][pair] & 0xffff0000u) - Bits{}), odd[row]);
        }
      }
      for (int row = 0; row < kRows; ++row) {
        Vec sum;
        std::memcpy(&sum, sums[row] + column, sizeof sum);
        sum += even[row] + odd[row];
        std::memcpy(sums[row] + column, &sum, sizeof sum);
      }
    }
  }

  alignas(64) Row numbers_[8][kTileRows];
  int64_t rows_[8] = {};
};

}  // namespace
