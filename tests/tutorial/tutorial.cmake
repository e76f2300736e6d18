# The tutorial programs of the five languages print the same bytes, and so do those that also run as
# a distributed job, here as a job of one. The training on GPUs runs on the stand-in driver.

find_program(GO go)
set(python "${PROJECT_SOURCE_DIR}/build/venv/bin/python")

set(languages c cpp rust)
if(GO)
  list(APPEND languages go)
endif()
if(EXISTS "${python}")
  list(APPEND languages python)
endif()

# Adds the test of an example; further arguments are the program's own.
function(add_example_test language program)
  add_labelled_test(${program}_${language} tutorial 600
    bash "${CMAKE_CURRENT_SOURCE_DIR}/tutorial/compare.sh" ${language} ${program} ${ARGN})
  # One build folder serves all C and C++ examples.
  set_tests_properties(${program}_${language} PROPERTIES RESOURCE_LOCK examples
    ENVIRONMENT "KVSTORE_PREFIX=${fresh_prefix}")
endfunction()

add_labelled_test(train_digits_gpu tutorial 600
  bash "${CMAKE_CURRENT_SOURCE_DIR}/tutorial/gpu.sh" "${cuda_stand_in}")
set_tests_properties(train_digits_gpu PROPERTIES RESOURCE_LOCK examples SKIP_RETURN_CODE 77
  ENVIRONMENT "KVSTORE_PREFIX=${fresh_prefix}")

foreach(language IN LISTS languages)
  add_example_test(${language} tutorial)
  add_example_test(${language} features)
  if(NOT language STREQUAL rust)
    add_example_test(${language} rounds local)
  endif()
endforeach()
