// The supported kinds of quantized blocks: `kBytes` bytes of a file are `kNumbers` numbers.
//
// Each number is computed by the operations of the gguf library, with the same roundings, so that its bits are equal.
// Scales are float16, and the numbers of a block are in the order of ggml's dequantize_row functions.
#pragma once

#include <cstdint>
#include <cstring>

namespace rekindle {

// Returns the float16 number stored at an address.
inline float half_at(const uint8_t* stored) {
  const uint32_t half = stored[0] | stored[1] << 8, exponent = half >> 10 & 31, fraction = half & 1023;
  const float sign = half >> 15 ? -1.0f : 1.0f;
  if (exponent == 0) return sign * (static_cast<float>(fraction) * 0x1p-24f);
  const uint32_t bits = half >> 15 << 31 | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

// Returns the number of a code of E4M3, 480 for codes that are not numbers.
inline float e4m3_of(uint8_t code) {
  const uint32_t size = code & 127, bits = (size << 20) + (120u << 23);
  float number = static_cast<float>(size) * 0x1p-9f;
  if (size >= 8) std::memcpy(&number, &bits, sizeof number);
  return code >> 7 ? -number : number;
}

struct Q4_0 {
  static constexpr int kNumbers = 32, kBytes = 18;
  static void read(const uint8_t* block, float* numbers) {
    const float scale = half_at(block);
    for (int i = 0; i < 16; ++i) numbers[i] = static_cast<float>((block[2 + i] & 15) - 8) * scale;
    for (int i = 0; i < 16; ++i) numbers[16 + i] = static_cast<float>((block[2 + i] >> 4) - 8) * scale;
  }
};

struct Q4_1 {
  static constexpr int kNumbers = 32, kBytes = 20;
  static void read(const uint8_t* block, float* numbers) {
    const float scale = half_at(block), least = half_at(block + 2);
    for (int i = 0; i < 16; ++i) numbers[i] = static_cast<float>(block[4 + i] & 15) * scale + least;
    for (int i = 0; i < 16; ++i) numbers[16 + i] = static_cast<float>(block[4 + i] >> 4) * scale + least;
  }
};

struct Q8_0 {
  static constexpr int kNumbers = 32, kBytes = 34;
  static void read(const uint8_t* block, float* numbers) {
    const float scale = half_at(block);
    for (int i = 0; i < 32; ++i) numbers[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
  }
};

// The scales and minima of the eight groups of 32 numbers in a block of 256: 6 bits each, in 12 bytes.
struct Groups {
  float scale[8], less[8];

  // Reads the two float16 factors of all groups, and the 12 bytes after them.
  explicit Groups(const uint8_t* block) {
    const float factor = half_at(block), of_less = half_at(block + 2);
    const uint8_t* low = block + 4;
    for (int i = 0; i < 4; ++i) {
      scale[i] = factor * static_cast<float>(low[i] & 63);
      less[i] = of_less * static_cast<float>(low[4 + i] & 63);
      scale[4 + i] = factor * static_cast<float>((low[8 + i] & 15) | low[i] >> 6 << 4);
      less[4 + i] = of_less * static_cast<float>(low[8 + i] >> 4 | low[4 + i] >> 6 << 4);
    }
  }
};

struct Q4_K {
  static constexpr int kNumbers = 256, kBytes = 144;
  static void read(const uint8_t* block, float* numbers) {
    const Groups groups(block);
    for (int g = 0; g < 8; ++g) {
      const uint8_t* bytes = block + 16 + g / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        numbers[g * 32 + i] = groups.scale[g] * static_cast<float>(bytes[i] >> g % 2 * 4 & 15) - groups.less[g];
      }
    }
  }
};

struct Q5_K {
  static constexpr int kNumbers = 256, kBytes = 176;
  static void read(const uint8_t* block, float* numbers) {
    const Groups groups(block);
    for (int g = 0; g < 8; ++g) {
      const uint8_t *fifths = block + 16, *bytes = block + 48 + g / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        const int number = (bytes[i] >> g % 2 * 4 & 15) | (fifths[i] >> g & 1) << 4;
        numbers[g * 32 + i] = groups.scale[g] * static_cast<float>(number) - groups.less[g];
      }
    }
  }
};

struct Q6_K {
  static constexpr int kNumbers = 256, kBytes = 210;
  static void read(const uint8_t* block, float* numbers) {
    const float factor = half_at(block + 208);
    for (int g = 0; g < 16; ++g) {  // each group of 16 has a scale
      const int half = g / 8, quarter = g % 8 / 2, odd = g % 2 * 16;
      const uint8_t *low = block + half * 64 + quarter % 2 * 32 + odd, *high = block + 128 + half * 32 + odd;
      const float scale = factor * static_cast<float>(static_cast<int8_t>(block[192 + g]));
      for (int i = 0; i < 16; ++i) {
        const int number = (low[i] >> quarter / 2 * 4 & 15) | (high[i] >> quarter * 2 & 3) << 4;
        numbers[g * 16 + i] = scale * static_cast<float>(number - 32);
      }
    }
  }
};

}  // namespace rekindle
