# Collects what tools/gpu-check needs on a machine with a GPU that has neither compilers nor the
# project's libraries: stripped programs that look for libraries beside themselves, and the
# libraries they need but for those of every Linux. Run by the target gpu_bundle with
#   PROGRAMS (comma-separated), BUNDLE (a folder), STRIP
cmake_minimum_required(VERSION 3.25)
set(most_bytes 50000000)  # it is carried over slow lines

string(REPLACE "," ";" programs "${PROGRAMS}")
file(REMOVE_RECURSE ${BUNDLE})
file(GET_RUNTIME_DEPENDENCIES
    EXECUTABLES ${programs}
    RESOLVED_DEPENDENCIES_VAR libraries
    UNRESOLVED_DEPENDENCIES_VAR missing
    PRE_EXCLUDE_REGEXES "^(libc|libm|libstdc\\+\\+|libgcc_s|libpthread|libdl|librt|ld-linux.*)\\.so")
if(missing)
    message(FATAL_ERROR "gpu_bundle: these libraries are not found: ${missing}")
endif()
file(MAKE_DIRECTORY ${BUNDLE})
set(bytes 0)
foreach(file ${programs} ${libraries})
    get_filename_component(name ${file} NAME)  # as it is looked for, whatever it links to
    get_filename_component(from ${file} REALPATH)
    execute_process(COMMAND ${STRIP} --strip-unneeded -o ${BUNDLE}/${name} ${from}
                    COMMAND_ERROR_IS_FATAL ANY)
    file(SIZE ${BUNDLE}/${name} size)
    math(EXPR bytes "${bytes} + ${size}")
endforeach()
math(EXPR megabytes "${bytes} / 1000000")
if(bytes GREATER most_bytes)
    message(FATAL_ERROR "gpu_bundle: ${BUNDLE} has ${megabytes} MB; 50 are the limit")
endif()
get_filename_component(folder ${BUNDLE} DIRECTORY)
get_filename_component(name ${BUNDLE} NAME)
execute_process(COMMAND ${CMAKE_COMMAND} -E tar cJf ${BUNDLE}.tar.xz ${name}
                WORKING_DIRECTORY ${folder} COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "${BUNDLE}: ${megabytes} MB; packed in ${BUNDLE}.tar.xz")
