// Deferred results of handlers, so that no thread waits for them.
#pragma once

#include <string>
#include <utility>

#include "handler.h"
#include "parallel.h"

namespace rekindle {

inline ffi::Future done() {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetAvailable();
  return future;
}

inline ffi::Future failed(ffi::Error error) {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(std::move(error));
  return future;
}

inline ffi::Future invalid(std::string message) { return failed(ffi::Error::InvalidArgument(std::move(message))); }

// Calls `body(part)` for each part below `count` on the threads of the pool, and then `then()` on the thread of the
// last part, which continues the program. Both must hold their data by value, because they outlive the handler's
// arguments.
//
// A thread outside the pool leaves the work and its continuation to the pool. With it there would be one thread more
// than processors, and a suspended thread delays all others. (Measured: a tenth of a step of one row.) The pool always
// makes progress: our threads wait in it only for parts already started by others, and it has at least as many threads
// as devices, each of which waits in one collective operation at a time.
template <typename Body, typename Then>
ffi::Future in_parts(ffi::ThreadPool& pool, int64_t count, Body body, Then then) {
  if (count < 2) {
    for (int64_t part = 0; part < count; ++part) body(part);
    then();
    return done();
  }
  ffi::Promise promise;
  ffi::Future future(promise);
  start(pool, count, of_pool, std::move(body), [then = std::move(then), promise = std::move(promise)]() mutable {
    then();
    promise.SetAvailable();
  });
  return future;
}

template <typename Body>
ffi::Future in_parts(ffi::ThreadPool& pool, int64_t count, Body body) {
  return in_parts(pool, count, std::move(body), [] {});
}

}  // namespace rekindle
