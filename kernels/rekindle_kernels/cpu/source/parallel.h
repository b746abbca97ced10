// Runs the parts of one call on XLA's threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace rekindle {

// Whether this thread belongs to the pool. Other threads are JAX's, and only start programs.
inline thread_local bool of_pool = false;

// Parts of one piece of work, taken by threads one after the other; the thread of the last part calls `then`. The
// object outlives the call, because a thread of the pool may reach it only after the end.
template <typename Body, typename Then>
class Parts {
 public:
  Parts(int64_t count, Body body, Then then) : count_(count), body_(std::move(body)), then_(std::move(then)) {}

  // Runs parts until all are taken.
  void help() {
    int64_t ran = 0;
    for (int64_t part; (part = next_.fetch_add(1, std::memory_order_relaxed)) < count_; ++ran) body_(part);
    if (ran > 0 && done_.fetch_add(ran, std::memory_order_acq_rel) + ran == count_) then_();
  }

 private:
  const int64_t count_;
  Body body_;
  Then then_;
  std::atomic<int64_t> next_{0}, done_{0};
};

// Calls `body(part)` for each part below `count`, which is not 0, on free threads of the pool, and then `then()` once.
// `helps` is whether this thread takes parts too.
template <typename Pool, typename Body, typename Then>
void start(Pool& pool, int64_t count, bool helps, Body body, Then then) {
  auto parts = std::make_shared<Parts<Body, Then>>(count, std::move(body), std::move(then));
  const int64_t others = std::min<int64_t>(std::max<int64_t>(pool.num_threads(), 1), count) - (helps ? 1 : 0);
  for (int64_t i = 0; i < others; ++i)
    pool.Schedule([parts] {
      of_pool = true;
      parts->help();
    });
  if (helps) parts->help();
}

// The awaited end of some work.
class End {
 public:
  void set() {
    std::lock_guard<std::mutex> lock(mutex_);
    set_.store(true, std::memory_order_release);
    changed_.notify_all();
  }

  // Spins for microseconds, then sleeps.
  void wait() {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (set_.load(std::memory_order_acquire)) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return set_.load(std::memory_order_acquire); });
  }

 private:
  static constexpr int kSpins = 500;
  std::atomic<bool> set_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Calls `body(part)` for each part below `count`, on this thread and on free threads of the pool, and waits.
//
// This thread never waits for a part not yet started, so any number of calls cannot deadlock.
template <typename Pool, typename Body>
void parallel_for(Pool& pool, int64_t count, Body body) {
  if (std::min<int64_t>(pool.num_threads(), count) < 2) {
    for (int64_t part = 0; part < count; ++part) body(part);
    return;
  }
  auto end = std::make_shared<End>();
  start(pool, count, true, [&body](int64_t part) { body(part); }, [end] { end->set(); });
  end->wait();
}

}  // namespace rekindle
