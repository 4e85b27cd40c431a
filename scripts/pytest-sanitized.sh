#!/usr/bin/env bash
# Builds the extension with a sanitizer into build/<name>/ and runs tests on that build: NAME [--built] PYTEST ARGUMENT...
# The development build in transport/ stays as it is. --built: the build of the call before is meant.
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
shift
out=$PWD/build/sanitize-$name
if [[ ${1:-} == --built ]]; then
    shift
else
    rm -rf "${out:?}/lib" # a file that was deleted from transport/ must not live on in the copy
    TRANSPORT_SANITIZE=$name .venv/bin/python setup.py --quiet build --build-base "$out" --build-lib "$out/lib" \
        2> >(grep -v -i warning >&2)
fi

# The sanitizer wraps C++'s throw, which torch uses: it must find the C++ library when it starts.
preload="$(gcc -print-file-name="lib${name:0:1}san.so") $(gcc -print-file-name=libstdc++.so.6)"
# The interpreter itself frees little at exit, so leaks are the C tests' business.
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1
# Not `python -m pytest`: that would put the tree, with its plain build, in front of PYTHONPATH. Nor may the processes that
# tests start with -m or -c do that.
export PYTHONSAFEPATH=1
existing=()
for argument in "$@"; do
    [[ $argument == tests/* && ! -e ${argument%%::*} ]] || existing+=("$argument")
done
LD_PRELOAD=$preload PYTHONPATH=$out/lib PYTHONMALLOC=malloc .venv/bin/pytest -q -p no:cacheprovider "${existing[@]}"
