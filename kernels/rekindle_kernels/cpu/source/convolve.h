// Causal depthwise convolution of tokens, one after the other; a token's bits are independent of the others.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace {

using rekindle::kChannels;
using rekindle::kTaps;

// The weights of some channels by tap, their bias, and their inputs before the first token.
struct Filter {
  float weights[kTaps][kChannels], bias[kChannels], past[kTaps - 1][kChannels];

  Filter(const rekindle::Convolution& all, const float* state, int64_t first, int64_t width) {
    const float* weight = all.weight + first * all.taps;
    for (int64_t tap = 0; tap < all.taps; ++tap)
      for (int64_t c = 0; c < width; ++c) weights[tap][c] = weight[c * all.taps + tap];
    for (int64_t c = 0; c < width; ++c) bias[c] = all.bias == nullptr ? 0.0f : all.bias[first + c];
    for (int64_t i = 0; i < all.taps - 1; ++i)
      if (state == nullptr)
        std::memset(past[i], 0, width * sizeof(float));
      else
        std::memcpy(past[i], state + i * all.channels, width * sizeof(float));
  }

  // Returns the sums of some channels, from the inputs of a token and of those before it.
  template <typename Load>
  Vec sums(const float* const* inputs, int64_t taps, int64_t c, Load load) const {
    Vec sum = load(bias + c);
    for (int64_t tap = 0; tap < taps; ++tap) sum = fused(load(weights[tap] + c), load(inputs[tap] + c), sum);
    return sum;
  }
};

void convolve(const rekindle::Convolution& all, const rekindle::Stretch& part, int64_t first_channel) {
  const int64_t channels = all.channels, taps = all.taps, before = taps - 1;
  const int64_t width = least(kChannels, channels - first_channel), whole = width / kLanes * kLanes;
  const float* x = all.x + part.first_token * channels + first_channel;
  float* y = all.y + part.first_token * channels + first_channel;
  float* state = all.states + part.slot * before * channels + first_channel;
  const Filter filter(all, part.fresh ? nullptr : state, first_channel, width);
  const auto input = [&](int64_t token) { return token < 0 ? filter.past[before + token] : x + token * channels; };
  for (int64_t token = 0; token < part.tokens; ++token, y += channels) {
    const float* inputs[kTaps];
    for (int64_t tap = 0; tap < taps; ++tap) inputs[tap] = input(token - before + tap);
    for (int64_t c = 0; c < whole; c += kLanes)
      store(y + c, filter.sums(inputs, taps, c, [](const float* from) { return load(from); }));
    if (const int64_t rest = width - whole; rest > 0)
      store_first(y + whole,
                  filter.sums(inputs, taps, whole, [=](const float* from) { return load_first(from, rest); }), rest);
  }
  for (int64_t i = 0; i < before; ++i)
    std::memcpy(state + i * channels, input(part.tokens - before + i), width * sizeof(float));
}

}  // namespace
