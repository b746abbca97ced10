// Results of handlers that end later, so that no thread waits for them.
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

// Calls `body(part)` for each part below `count` on the threads of the pool, and then `then()` on the thread that ended
// the last part, which goes on with the program. Both are kept until that is done, when arguments of the handler may be
// gone: they hold what they need by value.
//
// A thread that is not of the pool leaves the work, and what follows it, to those that are. With it there would be one
// thread more than processors, and whichever is put aside keeps the others waiting. (Measured: a tenth of a step of one
// row.) The pool always gets on: of ours, a thread waits in it only for parts that others have begun, and it has at
// least as many threads as there are devices, each of which waits for others in one collective operation at a time.
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
