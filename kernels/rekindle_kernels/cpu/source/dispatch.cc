// The choice of the instruction set.
#include "kernels.h"

namespace rekindle {

#if defined(__x86_64__)

namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}

const Kernels* kernels() {
  static const Kernels* const chosen = []() -> const Kernels* {
    __builtin_cpu_init();
    [[maybe_unused]] const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
// A library may lack some sets: compilers before 2020 do not support avx512_bf16, and tests try each set alone.
#if defined(REKINDLE_HAVE_avx512_bf16)
    if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"))
      return &avx512_bf16::kernels;
#endif
#if defined(REKINDLE_HAVE_avx512)
    if (avx512) return &avx512::kernels;
#endif
#if defined(REKINDLE_HAVE_avx2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &avx2::kernels;
#endif
    return nullptr;
  }();
  return chosen;
}

#elif defined(__aarch64__)

namespace neon {
extern const Kernels kernels;
}

const Kernels* kernels() { return &neon::kernels; }

#else

const Kernels* kernels() { return nullptr; }

#endif

}  // namespace rekindle

// Returns the name of the instruction set in use; null if this machine has none of the compiled ones.
extern "C" __attribute__((visibility("default"))) const char* rekindle_instruction_set() {
  const rekindle::Kernels* chosen = rekindle::kernels();
  return chosen == nullptr ? nullptr : chosen->name;
}
