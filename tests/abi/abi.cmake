# What the installed library and header promise to a linker and a compiler.

set(abi "${CMAKE_CURRENT_SOURCE_DIR}/abi")
set(installed_library "${fresh_prefix}/${CMAKE_INSTALL_LIBDIR}/${KVSTORE_SO_REAL}")

foreach(promise symbols declared releases soname nodelete needed size stripped)
  add_labelled_test(abi_${promise} abi 60 bash "${abi}/library.sh" ${promise} "${installed_library}"
    "${PROJECT_SOURCE_DIR}/include/kvstore.h")
endforeach()

# The library without the distributed stores; the one that can be made to panic is a little larger.
add_labelled_test(abi_size_of_local_stores abi 60 bash "${abi}/library.sh" local_size
  "${PROJECT_BINARY_DIR}/kvstore_fault/${KVSTORE_SO_REAL}" "${PROJECT_SOURCE_DIR}/include/kvstore.h")

add_labelled_test(abi_guards abi 60 bash "${abi}/guards.sh" "${PROJECT_SOURCE_DIR}/src/capi")

add_program(abi_version_program "${abi}/version.c" kvstore::kvstore)
add_labelled_test(abi_version abi 60 abi_version_program ${crate_version} ${KVSTORE_SO_NAME})

# Programs built with the headers of earlier releases that have this number run with this library.
file(GLOB headers "${CMAKE_CURRENT_SOURCE_DIR}/golden/releases/*/kvstore.h")
foreach(header ${headers})
  file(STRINGS "${header}" line REGEX "^#define KV_ABI_VERSION ${abi_version}$")
  if(line)
    get_filename_component(folder "${header}" DIRECTORY)
    get_filename_component(release "${folder}" NAME)
    add_program(abi_rounds_of_${release} "${PROJECT_SOURCE_DIR}/examples/c/rounds.c" kvstore::kvstore)
    target_include_directories(abi_rounds_of_${release} BEFORE PRIVATE "${folder}")
    add_labelled_test(abi_program_of_${release} abi 60 abi_rounds_of_${release} local)
    set_tests_properties(abi_program_of_${release} PROPERTIES
      PASS_REGULAR_EXPRESSION "after round 5: 6\\.0")
  endif()
endforeach()

set(strict -Wall -Wextra -Wpedantic -Werror -fsyntax-only)
foreach(standard c99 c11 c17 c2x)
  add_labelled_test(abi_header_alone_as_${standard} abi 60 "${CMAKE_C_COMPILER}" -std=${standard}
    ${strict} "-I${fresh_prefix}/include" "${abi}/include_twice.c")
endforeach()
foreach(standard c++17 c++20)
  add_labelled_test(abi_header_alone_as_${standard} abi 60 "${CMAKE_CXX_COMPILER}" -std=${standard}
    ${strict} "-I${fresh_prefix}/include" -x c++ "${abi}/include_twice.c")
  add_labelled_test(abi_cpp_header_alone_as_${standard} abi 60 "${CMAKE_CXX_COMPILER}"
    -std=${standard} ${strict} "-I${fresh_prefix}/include" "${abi}/include_twice.cpp")
endforeach()

# Debian's libdlpack-dev; without it the test runner says that the comparison was not run.
find_path(DLPACK_INCLUDE dlpack/dlpack.h)
if(DLPACK_INCLUDE)
  add_program(abi_layout_program "${abi}/layout.c" kvstore::kvstore)
  target_include_directories(abi_layout_program SYSTEM PRIVATE "${DLPACK_INCLUDE}")
  add_labelled_test(abi_layout_of_dlpack abi 60 abi_layout_program)
endif()
