# The example programs of the languages print the same bytes, and so do those that also run as a distributed job: in
# one process, and in a job of two workers and a server. `cargo test` runs that of Rust in a job. The training on
# GPUs runs on the stand-in driver.

find_program(GO go)
set(python "${PROJECT_SOURCE_DIR}/build/venv/bin/python")

set(languages c cpp rust)
if(GO)
  list(APPEND languages go)
endif()
if(EXISTS "${python}")
  list(APPEND languages python)
endif()

# Adds the test NAME_LANGUAGE: an example prints what tests/golden/NAME.txt has. Further arguments are those of
# scripts/example.sh.
function(add_example_test name language)
  add_labelled_test(${name}_${language} tutorial 600
    bash "${CMAKE_CURRENT_SOURCE_DIR}/tutorial/compare.sh" tests/golden/${name}.txt ${ARGN})
  # One build folder serves all C and C++ examples.
  set_tests_properties(${name}_${language} PROPERTIES RESOURCE_LOCK examples
    ENVIRONMENT "KVSTORE_PREFIX=${fresh_prefix}")
endfunction()

add_labelled_test(train_digits_gpu tutorial 600
  bash "${CMAKE_CURRENT_SOURCE_DIR}/tutorial/gpu.sh" "${cuda_stand_in}")
set_tests_properties(train_digits_gpu PROPERTIES RESOURCE_LOCK examples SKIP_RETURN_CODE 77
  ENVIRONMENT "KVSTORE_PREFIX=${fresh_prefix}")

foreach(language IN LISTS languages)
  add_example_test(tutorial ${language} ${language} tutorial)
  add_example_test(features ${language} ${language} features)
  if(NOT language STREQUAL rust)
    add_example_test(rounds ${language} ${language} rounds local)
    if(KVSTORE_DIST)
      foreach(program features rounds)
        add_example_test(${program}_job ${language} -n 2 -s 1 ${language} ${program} dist_sync)
      endforeach()
    endif()
  endif()
endforeach()
