// Common parts of the handler files.
#pragma once

#include <vector>

#include "xla/ffi/api/ffi.h"

#define REKINDLE_EXPORT __attribute__((visibility("default")))

// Defines a function for XLA; only these functions are exported from the library.
#define REKINDLE_HANDLER(name, function, ...)                                    \
  extern "C" REKINDLE_EXPORT XLA_FFI_Error* name(XLA_FFI_CallFrame* call_frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, function, (__VA_ARGS__))

namespace rekindle {

namespace ffi = xla::ffi;

using Matrix = ffi::Buffer<ffi::F32, 2>;
using Vector = ffi::Buffer<ffi::F32, 1>;
using Ids = ffi::Buffer<ffi::S32, 1>;

// Returns the numbers of a vector, or null for an empty one.
inline const float* data_or_null(const Vector& x) { return x.element_count() ? x.typed_data() : nullptr; }

// Returns whether the bias of a norm is empty, or fits to its features.
inline bool fits(const Vector& bias, int64_t features, bool centred) {
  const int64_t count = bias.element_count();
  return count == 0 || (centred && count == features);
}

// Returns this thread's reusable memory for a part.
inline float* scratch(int64_t size) {
  static thread_local std::vector<float> kept;
  if (static_cast<int64_t>(kept.size()) < size) kept.resize(size);
  return kept.data();
}

}  // namespace rekindle
