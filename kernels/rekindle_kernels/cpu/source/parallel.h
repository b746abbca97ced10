// Runs the parts of one call on XLA's own threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace rekindle {

// Parts of one piece of work, which threads take one after the other. It outlives the call, because a thread of the
// pool may come to it only when all is done.
class Parts {
 public:
  Parts(int64_t count, void (*run)(void*, int64_t), void* work) : count_(count), run_(run), work_(work) {}

  // Runs parts until none is left to take.
  void help() {
    int64_t ran = 0;
    for (int64_t part; (part = next_.fetch_add(1, std::memory_order_relaxed)) < count_; ++ran) run_(work_, part);
    if (ran > 0 && done_.fetch_add(ran, std::memory_order_acq_rel) + ran == count_) {
      std::lock_guard<std::mutex> lock(mutex_);
      finished_.notify_all();
    }
  }

  // Waits for the parts that other threads took: for microseconds without giving up the processor, then asleep.
  void wait() {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (done_.load(std::memory_order_acquire) == count_) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [this] { return done_.load(std::memory_order_acquire) == count_; });
  }

 private:
  static constexpr int kSpins = 500;
  const int64_t count_;
  void (*const run_)(void*, int64_t);
  void* const work_;
  std::atomic<int64_t> next_{0}, done_{0};
  std::mutex mutex_;
  std::condition_variable finished_;
};

// Calls `body(part)` for each part below `count`, on this thread and on those of the pool that are free.
//
// This thread never waits for a part that nobody has begun, so calls cannot hang each other, however many there are.
template <typename Pool, typename Body>
void parallel_for(Pool& pool, int64_t count, Body body) {
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  if (helpers < 1) {
    for (int64_t part = 0; part < count; ++part) body(part);
    return;
  }
  auto run = [](void* work, int64_t part) { (*static_cast<Body*>(work))(part); };
  auto parts = std::make_shared<Parts>(count, run, &body);
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([parts] { parts->help(); });
  parts->help();
  parts->wait();
}

}  // namespace rekindle
