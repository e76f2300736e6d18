# Controls: each tool must find the mistake that a program makes on purpose. Without them a run that
# looks at nothing would pass.

add_labelled_test(asan_is_in_every_program asan 60
  bash "${controls}/sanitized.sh" "${CMAKE_NM}" ${sanitized})

add_program(leak_control "${controls}/leak.c" kvstore::kvstore)
add_program(asan_leak_control "${controls}/leak.c" kvstore::kvstore ${sanitize})
add_program(race_control "${controls}/race.c" kvstore::kvstore)

add_labelled_test(asan_finds_a_leak asan 60 asan_leak_control)
set_tests_properties(asan_finds_a_leak PROPERTIES
  PASS_REGULAR_EXPRESSION "LeakSanitizer: detected memory leaks")

add_valgrind_test(valgrind_finds_a_leak valgrind 60
  ${memcheck} --leak-check=full $<TARGET_FILE:leak_control>)
add_valgrind_test(helgrind_finds_a_race helgrind 60
  ${helgrind} $<TARGET_FILE:race_control>)
if(VALGRIND)
  set_tests_properties(valgrind_finds_a_leak PROPERTIES
    PASS_REGULAR_EXPRESSION "are definitely lost in loss record")
  set_tests_properties(helgrind_finds_a_race PROPERTIES
    PASS_REGULAR_EXPRESSION "Possible data race")
endif()
