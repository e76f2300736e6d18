# The C and C++ programs again, under ThreadSanitizer, with a library whose every memory access is
# instrumented too, Rust's standard library included. That takes a nightly toolchain with rust-src;
# without it there are no such tests, and the test runner says so.

execute_process(COMMAND rustc +nightly --print sysroot OUTPUT_VARIABLE nightly ERROR_QUIET
  OUTPUT_STRIP_TRAILING_WHITESPACE)
execute_process(COMMAND rustc -vV OUTPUT_VARIABLE rustc_version)
if(NOT nightly OR NOT EXISTS "${nightly}/lib/rustlib/src/rust/library")
  return()
endif()
string(REGEX REPLACE ".*host: ([^\n]+).*" "\\1" host "${rustc_version}")

add_cargo_library(kvstore_tsan "${KVSTORE_CARGO_TARGET_DIR}/thread-sanitizer"
  LOCAL TOOLCHAIN +nightly OPTIONS -Zbuild-std TARGET ${host} RUSTFLAGS -Zsanitizer=thread)
add_library(tsan_shim STATIC "${CMAKE_CURRENT_SOURCE_DIR}/thread_sanitizer/shim.c")
target_compile_options(tsan_shim PRIVATE -fno-builtin)

# Adds the program tsan_NAME and its test; further arguments are properties of the test.
function(add_thread_sanitized_test name source)
  add_program(tsan_${name} "${source}" kvstore_tsan::kvstore -fsanitize=thread)
  target_link_options(tsan_${name} PRIVATE -rdynamic)
  target_link_libraries(tsan_${name} PRIVATE -Wl,--whole-archive tsan_shim -Wl,--no-whole-archive)
  add_labelled_test(tsan_${name} tsan 300 tsan_${name})
  # More memory than there is must give a status, not the end of the program.
  set_tests_properties(tsan_${name} PROPERTIES
    ENVIRONMENT "KV_TEST_SCALE=small;TSAN_OPTIONS=allocator_may_return_null=1" ${ARGN})
endfunction()

foreach(source IN LISTS programs)
  describe("${source}" name label)
  # ThreadSanitizer does not support threads that a forked child starts. This library has no CUDA.
  if(NOT name MATCHES "fork|devices$")
    add_thread_sanitized_test(${name} "${source}")
  endif()
endforeach()

add_thread_sanitized_test(finds_a_race "${controls}/race.c"
  PASS_REGULAR_EXPRESSION "WARNING: ThreadSanitizer: data race")
