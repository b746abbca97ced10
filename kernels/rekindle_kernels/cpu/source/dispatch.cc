// The choice of the instruction set.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

#if defined(REKINDLE_HAVE_amx) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace rekindle {
namespace {

// An instruction set of this library.
struct Set {
  const char* name;
  bool (*works)();  // on this machine
  const Kernels* (*kernels)();
};

}  // namespace

#define REKINDLE_SET(name)  \
  namespace name {          \
  const Kernels* kernels(); \
  }

#if defined(__x86_64__)

REKINDLE_SET(avx2)
REKINDLE_SET(avx512)
REKINDLE_SET(avx512_bf16)
REKINDLE_SET(amx)
REKINDLE_SET(amx_reference)

namespace {

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

[[maybe_unused]] bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}

#if defined(REKINDLE_HAVE_amx) && defined(__linux__)
// Asks Linux for the registers of tiles, once for all threads of the process. A container or an old kernel may refuse.
bool may_use_tiles() {
  constexpr unsigned kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  constexpr unsigned kTile = 1u << 24, kBfloat16 = 1u << 22;
  unsigned a, b, c, d = 0;
  if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile) || !(d & kBfloat16)) return false;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#else
[[maybe_unused]] bool may_use_tiles() { return false; }
#endif

// The best first. A library may lack some: older compilers do not support them, and tests try each set alone. The
// reference of amx is slow, and computes only if it is named.
constexpr Set kSets[] = {
#if defined(REKINDLE_HAVE_amx)
    {"amx", may_use_tiles, amx::kernels},
#endif
#if defined(REKINDLE_HAVE_avx512_bf16)
    {"avx512_bf16", has_avx512_bf16, avx512_bf16::kernels},
#endif
#if defined(REKINDLE_HAVE_avx512)
    {"avx512", has_avx512, avx512::kernels},
#endif
#if defined(REKINDLE_HAVE_avx2)
    {"avx2", has_avx2, avx2::kernels},
#endif
#if defined(REKINDLE_HAVE_amx_reference)
    {"amx_reference", has_avx512_bf16, amx_reference::kernels},
#endif
};

}  // namespace

#elif defined(__aarch64__)

REKINDLE_SET(neon)

namespace {

constexpr Set kSets[] = {{"neon", [] { return true; }, neon::kernels}};

}  // namespace

#else

namespace {

constexpr Set kSets[] = {{"none", [] { return false; }, [] { return static_cast<const Kernels*>(nullptr); }}};

}  // namespace

#endif

const Kernels* kernels() {
  static const Kernels* const chosen = []() -> const Kernels* {
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    const char* wanted = std::getenv("REKINDLE_ISA");
    for (const Set& set : kSets) {
      const bool named = wanted != nullptr && *wanted != '\0';
      const bool right = named ? std::strcmp(set.name, wanted) == 0 : std::strcmp(set.name, "amx_reference") != 0;
      if (right && set.works()) return set.kernels();
    }
    return nullptr;
  }();
  return chosen;
}

}  // namespace rekindle

// Returns the name of the instruction set in use; null if this machine has none of the compiled ones, or not the one
// that the environment variable REKINDLE_ISA names.
extern "C" __attribute__((visibility("default"))) const char* rekindle_instruction_set() {
  const rekindle::Kernels* chosen = rekindle::kernels();
  return chosen == nullptr ? nullptr : chosen->name;
}
