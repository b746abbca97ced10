// Runs linear layers from several threads over one pool; the thread sanitizer watches, and every sum is compared.
// Some callers wait for each layer; others begin the next where the last one ends, as a program of XLA's does.
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels.h"
#include "parallel.h"

namespace rekindle {
namespace REKINDLE_ISA {
const Kernels* kernels();
}  // namespace REKINDLE_ISA
}  // namespace rekindle

namespace {

constexpr int kThreads = 3, kCallers = 5, kChains = 4, kRounds = 200;
constexpr int64_t kRows = 20, kIn = 70, kOut = 200;
constexpr int64_t kPanels = (kOut + rekindle::kPanel - 1) / rekindle::kPanel;

// A pool as XLA's is seen by the kernels.
class Pool {
 public:
  Pool() {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int64_t num_threads() const { return kThreads; }

  void Schedule(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return ended_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

std::vector<float> numbers(int64_t count, int seed) {
  std::vector<float> made(count);
  for (int64_t i = 0; i < count; ++i) made[i] = static_cast<float>((i * 7919 + seed * 104729) % 1009) / 512 - 1;
  return made;
}

// Computes some panels of a layer.
void compute(const rekindle::Linear& all, int64_t first_panel, int64_t panels) {
  static thread_local std::vector<char> scratch;
  scratch.resize(rekindle::linear_scratch(all.rows, all.in));
  rekindle::REKINDLE_ISA::kernels()->linear_f32(all, {0, all.rows, first_panel, panels, scratch.data(), false});
}

// Computes a layer over and over; returns whether each time had the sums of one thread alone.
bool repeat(Pool& pool, const std::vector<float>& weight, int seed) {
  const std::vector<float> x = numbers(kRows * kIn, seed);
  std::vector<float> alone(kRows * kOut), together(kRows * kOut);
  for (int round = 0; round < kRounds; ++round) {
    const int64_t rows = 1 + round % kRows;  // parts that take long, and some that are done before anybody sleeps
    compute({x.data(), weight.data(), nullptr, alone.data(), rows, kIn, kOut, false}, 0, kPanels);
    const rekindle::Linear all{x.data(), weight.data(), nullptr, together.data(), rows, kIn, kOut, false};
    rekindle::parallel_for(pool, kPanels, [&](int64_t panel) { compute(all, panel, 1); });
    if (together != alone) return false;
    std::fill(together.begin(), together.end(), 0.0f);
    std::fill(alone.begin(), alone.end(), 0.0f);
  }
  return true;
}

// Computes a layer over and over, each time on the thread that ended it the time before; nobody waits.
class Chain {
 public:
  Chain(Pool& pool, const std::vector<float>& weight, int seed, std::atomic<int>& right, std::atomic<int>& ended)
      : pool_(pool), weight_(weight), x_(numbers(kRows * kIn, seed)), right_(right), ended_(ended) {
    compute({x_.data(), weight_.data(), nullptr, alone_.data(), kRows, kIn, kOut, false}, 0, kPanels);
  }

  void go_on() {
    const rekindle::Linear all{x_.data(), weight_.data(), nullptr, together_.data(), kRows, kIn, kOut, false};
    rekindle::start(
        pool_, kPanels, rekindle::of_pool, [=](int64_t panel) { compute(all, panel, 1); },
        [this] {
          same_ &= together_ == alone_;
          std::fill(together_.begin(), together_.end(), 0.0f);
          if (++rounds_ < kRounds) return go_on();
          right_ += same_;
          ended_ += 1;
        });
  }

 private:
  Pool& pool_;
  const std::vector<float>& weight_;
  const std::vector<float> x_;
  std::vector<float> alone_ = std::vector<float>(kRows * kOut), together_ = alone_;
  std::atomic<int>&right_, &ended_;
  int rounds_ = 0;
  bool same_ = true;
};

}  // namespace

int main() {
  const std::vector<float> weight = numbers((kOut + 31) / 32 * 32 * kIn, 0);
  std::atomic<int> right{0}, ended{0};
  {
    Pool pool;
    right += repeat(pool, weight, kCallers);  // alone, so that all threads of the pool take parts
    // More callers than threads, as parts of the pool itself: each must get on while all others wait.
    for (int caller = 0; caller < kCallers; ++caller)
      pool.Schedule([&, caller] {
        right += repeat(pool, weight, caller);
        ended += 1;
      });
    std::vector<std::unique_ptr<Chain>> chains;
    for (int chain = 0; chain < kChains; ++chain)
      chains.push_back(std::make_unique<Chain>(pool, weight, kCallers + 1 + chain, right, ended));
    for (const auto& chain : chains) chain->go_on();
    while (ended < kCallers + kChains) std::this_thread::yield();
  }
  std::printf("%d of %d callers had the right sums\n", right.load(), kCallers + kChains + 1);
  return right == kCallers + kChains + 1 ? 0 : 1;
}
