# Programs outside the tree, built against an installed library: once where it was installed, once
# after the whole prefix was moved to another folder.

set(install "${CMAKE_CURRENT_SOURCE_DIR}/install")
set(fresh_prefix "${PROJECT_BINARY_DIR}/installed/fresh")
set(moved_prefix "${PROJECT_BINARY_DIR}/installed/moved")

add_custom_target(installed ALL
  COMMAND "${CMAKE_COMMAND}" -E rm -rf "${PROJECT_BINARY_DIR}/installed"
  COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${fresh_prefix}"
  COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${moved_prefix}-from-here"
  COMMAND "${CMAKE_COMMAND}" -E rename "${moved_prefix}-from-here" "${moved_prefix}"
  COMMENT "Installing into two temporary prefixes")
add_dependencies(installed kvstore)

find_program(GO go)
set(environment "CC=${CMAKE_C_COMPILER}" "CXX=${CMAKE_CXX_COMPILER}" "CMAKE=${CMAKE_COMMAND}"
  "VERSION=${crate_version}")
foreach(prefix fresh moved)
  foreach(way find_package pkg_config archive go)
    if(way STREQUAL go AND NOT GO)
      continue()
    endif()
    add_labelled_test(install_${way}_${prefix} install 300
      bash "${install}/${way}.sh" "${${prefix}_prefix}")
    set_tests_properties(install_${way}_${prefix} PROPERTIES ENVIRONMENT "${environment}")
  endforeach()
endforeach()

add_labelled_test(install_subdirectory install 900 bash "${install}/subdirectory.sh"
  "${PROJECT_SOURCE_DIR}" "${KVSTORE_CARGO_TARGET_DIR}")
set_tests_properties(install_subdirectory PROPERTIES ENVIRONMENT "${environment}")

add_labelled_test(install_bootstrap install 60 bash "${install}/bootstrap.sh" "${PROJECT_SOURCE_DIR}")
add_labelled_test(install_moved_clone install 60 bash "${install}/moved_clone.sh" "${PROJECT_SOURCE_DIR}")
