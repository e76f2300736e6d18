# What a program needs beside the static library: the system libraries of Rust's standard library.
# A C compiler driver adds libgcc_s or libgcc_eh by itself, whichever fits.
set(KVSTORE_SYSTEM_LIBRARIES util rt pthread m dl)

# Names of the files of a shared library: `real`, and the two links to it.
set(KVSTORE_SO_LINK libkvstore.so)
set(KVSTORE_SO_NAME libkvstore.so.${abi_version})
set(KVSTORE_SO_REAL libkvstore.so.${abi_version}.${crate_version})

find_program(CARGO cargo HINTS "$ENV{HOME}/.cargo/bin" REQUIRED)

# Adds the imported targets NAME::kvstore (shared) and NAME::static, built by cargo in TARGET_DIR.
# The target NAME builds both. The files lie under their final names in <build>/NAME, so that a
# program finds the library by its soname.
#
#   LOCAL      without the distributed stores and their engine
#   PROGRAM    with the program kvstore
#   FEATURES   cargo features of the library, separated by commas
#   TOOLCHAIN  the toolchain of rustup, such as +nightly
#   TARGET     the platform
#   RUSTFLAGS  flags for rustc
#   OPTIONS    further options for cargo
function(add_cargo_library name target_dir)
  cmake_parse_arguments(PARSE_ARGV 2 arg "LOCAL;PROGRAM"
    "FEATURES;TOOLCHAIN;TARGET;RUSTFLAGS" "OPTIONS")
  set(folder "${PROJECT_BINARY_DIR}/${name}")
  set(built "${target_dir}/${arg_TARGET}/release")
  # The program needs the distributed stores: its package would turn them on for the library.
  set(options --package libkvstore ${arg_OPTIONS})
  if(arg_LOCAL)
    list(APPEND options --no-default-features)
  endif()
  if(arg_PROGRAM)
    list(APPEND options --package libkvstore-cli --bin kvstore)
  endif()
  if(arg_FEATURES)
    string(REGEX REPLACE "([^,]+)" "libkvstore/\\1" features "${arg_FEATURES}")
    list(APPEND options --features "${features}")
  endif()
  if(arg_TARGET)
    list(APPEND options --target ${arg_TARGET})
  endif()
  # The job server of make does not reach a command of CMake.
  set(environment "${CMAKE_COMMAND}" -E env --unset=MAKEFLAGS --unset=MFLAGS)
  if(arg_RUSTFLAGS)
    list(APPEND environment "RUSTFLAGS=${arg_RUSTFLAGS}")
  endif()
  file(MAKE_DIRECTORY "${folder}")

  # Cargo knows best whether something changed: it is asked at every build. It reads the project's
  # .cargo/config.toml where it runs.
  add_custom_target(${name} ALL
    COMMAND "${CMAKE_COMMAND}" -E chdir "${PROJECT_SOURCE_DIR}"
      ${environment} "${CARGO}" ${arg_TOOLCHAIN} build --release --lib ${options}
      --target-dir "${target_dir}"
    COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${built}/libkvstore.so" ${KVSTORE_SO_REAL}
    COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${built}/libkvstore.a" libkvstore.a
    COMMAND "${CMAKE_COMMAND}" -E create_symlink ${KVSTORE_SO_REAL} ${KVSTORE_SO_NAME}
    COMMAND "${CMAKE_COMMAND}" -E create_symlink ${KVSTORE_SO_NAME} ${KVSTORE_SO_LINK}
    WORKING_DIRECTORY "${folder}"
    BYPRODUCTS "${folder}/${KVSTORE_SO_REAL}" "${folder}/libkvstore.a"
    COMMENT "cargo build --release (${name})"
    USES_TERMINAL VERBATIM)

  set(headers "${PROJECT_SOURCE_DIR}/include;${PROJECT_SOURCE_DIR}/bindings/cpp")
  add_library(${name}::kvstore SHARED IMPORTED GLOBAL)
  set_target_properties(${name}::kvstore PROPERTIES
    IMPORTED_LOCATION "${folder}/${KVSTORE_SO_REAL}"
    IMPORTED_SONAME ${KVSTORE_SO_NAME}
    INTERFACE_INCLUDE_DIRECTORIES "${headers}")
  add_library(${name}::static STATIC IMPORTED GLOBAL)
  set_target_properties(${name}::static PROPERTIES
    IMPORTED_LOCATION "${folder}/libkvstore.a"
    INTERFACE_LINK_LIBRARIES "${KVSTORE_SYSTEM_LIBRARIES}"
    INTERFACE_INCLUDE_DIRECTORIES "${headers}")
  add_dependencies(${name}::kvstore ${name})
  add_dependencies(${name}::static ${name})
endfunction()
