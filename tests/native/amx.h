// AMX in software, for x86-64 CPUs without it: this file comes before the library's sources. The machine has AMX as far
// as they can tell, and their machine code is unchanged: each instruction of tiles is illegal there, and its signal is
// answered by computing it, as Intel's manual defines it.
#pragma once

#if defined(REKINDLE_HAVE_amx)

// Before the macros below are defined.
#include <cpuid.h>
#include <immintrin.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {

struct Tile {
  uint8_t bytes[16][64];
  int rows, width;
};

inline Tile* tiles() {
  static thread_local Tile all[8] = {};
  return all;
}

// The registers of the interrupted code, by their numbers in instructions.
inline int64_t number_in(const ucontext_t* context, int index) {
  static constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return context->uc_mcontext.gregs[kPlaces[index]];
}

// A VEX instruction of three bytes of prefix.
struct Instruction {
  int opcode, prefix, reg, rm, mod, source;
  int64_t base = 0, index = 0, size = 5;  // of the address of its memory, and bytes

  Instruction(const uint8_t* at, const ucontext_t* context)
      : opcode(at[3]),
        prefix(at[2] & 3),
        reg(at[4] >> 3 & 7),
        rm(at[4] & 7),
        mod(at[4] >> 6),
        source(~(at[2] >> 3) & 15) {
    if (mod == 3) return;
    int own = rm;
    if (rm == 4) {
      const int scaled = (at[5] >> 3 & 7) | (at[1] & 0x40 ? 0 : 8);
      own = at[5] & 7;
      if (scaled != 4) index = number_in(context, scaled) << (at[5] >> 6);
      size = 6;
    }
    if (mod != 0 || own != 5) base = number_in(context, own | (at[1] & 0x20 ? 0 : 8));
    int32_t offset = 0;
    if (mod == 1) {
      offset = static_cast<int8_t>(at[size]);
      size += 1;
    } else if (mod == 2 || own == 5) {
      std::memcpy(&offset, at + size, 4);
      size += 4;
    }
    if (mod == 0 && rm == 5)
      offset += static_cast<int32_t>(reinterpret_cast<int64_t>(at) + size - base);  // of the code
    base += offset;
  }
};

inline void configure(const uint8_t* shapes) {
  if (shapes[0] != 1) std::abort();
  for (int t = 0; t < 8; ++t) {
    uint16_t width;
    std::memcpy(&width, shapes + 16 + 2 * t, 2);
    Tile& tile = tiles()[t];
    tile = {};
    tile.rows = shapes[48 + t], tile.width = width;
    if (tile.rows > 16 || tile.width > 64 || (tile.rows == 0) != (tile.width == 0)) std::abort();
  }
}

inline float bfloat16_at(const uint8_t* at) {
  uint16_t half;
  std::memcpy(&half, at, 2);
  const uint32_t bits = uint32_t{half} << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// TDPBF16PS. Denormal numbers are zeros, whatever the interrupted code's mode.
__attribute__((target("fma"))) inline void multiply(Tile& to, const Tile& x, const Tile& weights) {
  if (to.rows != x.rows || x.width / 4 != weights.rows || to.width != weights.width) std::abort();
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(0x9fc0);
  for (int row = 0; row < to.rows; ++row)
    for (int column = 0; column < to.width / 4; ++column) {
      volatile float even = 0, odd = 0, sum;
      for (int pair = 0; pair < x.width / 4; ++pair) {
        const uint8_t *a = x.bytes[row] + 4 * pair, *b = weights.bytes[pair] + 4 * column;
        even = __builtin_fmaf(bfloat16_at(a), bfloat16_at(b), even);
        odd = __builtin_fmaf(bfloat16_at(a + 2), bfloat16_at(b + 2), odd);
      }
      float before;
      std::memcpy(&before, to.bytes[row] + 4 * column, 4);
      sum = even + odd;
      const float after = before + sum;
      std::memcpy(to.bytes[row] + 4 * column, &after, 4);
    }
  _mm_setcsr(mode);
}

inline bool run(const Instruction& one) {
  enum { kNone, k66, kF3, kF2 };
  Tile& tile = tiles()[one.reg];
  uint8_t* memory = reinterpret_cast<uint8_t*>(one.base);
  if (one.opcode == 0x49 && one.prefix == kNone && one.mod != 3) {
    configure(memory + one.index);
  } else if (one.opcode == 0x49 && one.prefix == kNone) {
    for (int t = 0; t < 8; ++t) tiles()[t] = {};
  } else if (one.opcode == 0x49 && one.prefix == kF2) {
    std::memset(tile.bytes, 0, sizeof tile.bytes);
  } else if (one.opcode == 0x4b && one.prefix == kF2) {
    for (int row = 0; row < tile.rows; ++row) std::memcpy(tile.bytes[row], memory + row * one.index, tile.width);
  } else if (one.opcode == 0x4b && one.prefix == kF3) {
    for (int row = 0; row < tile.rows; ++row) std::memcpy(memory + row * one.index, tile.bytes[row], tile.width);
  } else if (one.opcode == 0x5c && one.prefix == kF3 && one.mod == 3) {
    multiply(tile, tiles()[one.rm], tiles()[one.source]);
  } else {
    return false;
  }
  return true;
}

inline void answer(int, siginfo_t*, void* of) {
  auto* context = static_cast<ucontext_t*>(of);
  auto& place = context->uc_mcontext.gregs[REG_RIP];
  const auto* at = reinterpret_cast<const uint8_t*>(place);
  const Instruction one(at, context);
  if (at[0] != 0xc4 || (at[1] & 31) != 2 || !run(one)) {
    std::fputs("an illegal instruction that is none of AMX\n", stderr);
    std::_Exit(132);
  }
  place += one.size;
}

inline long allow(long number, int request, unsigned feature) {
  if (number != SYS_arch_prctl || request != 0x1023 || feature != 18) return -1;
  struct sigaction action = {};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGILL, &action, nullptr);
}

inline int cpuid(unsigned leaf, unsigned part, unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
  const int found = __get_cpuid_count(leaf, part, a, b, c, d);
  if (leaf == 7 && part == 0) *d |= 1u << 22 | 1u << 24;
  return found;
}

}  // namespace emulated

#define __get_cpuid_count emulated::cpuid
#define syscall emulated::allow

#endif
