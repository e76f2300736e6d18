# The tutorial programs of the five languages print the same bytes.

find_program(GO go)
set(python "${PROJECT_SOURCE_DIR}/build/venv/bin/python")

set(languages c cpp rust)
if(GO)
  list(APPEND languages go)
endif()
if(EXISTS "${python}")
  list(APPEND languages python)
endif()

foreach(language IN LISTS languages)
  add_labelled_test(tutorial_${language} tutorial 600
    bash "${CMAKE_CURRENT_SOURCE_DIR}/tutorial/compare.sh" ${language})
  # One build folder serves all C and C++ examples.
  set_tests_properties(tutorial_${language} PROPERTIES RESOURCE_LOCK examples
    ENVIRONMENT "KVSTORE_PREFIX=${fresh_prefix}")
endforeach()
