# Shared by the scripts beside it: gets a wheel from PyPI, checks it, unpacks a part of it.
# shellcheck shell=bash

# fetch_wheel PACKAGE VERSION PYTHON PLATFORM FILE FOLDER
fetch_wheel() {
    if python3 -m pip --version >/dev/null 2>&1; then
        python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$3" \
            --platform "$4" -d "$6" "$1==$2" >&2
    elif command -v curl >/dev/null; then
        local url
        # PyPI's list of the package's files names where each lies.
        url=$(curl -fsSL --retry 3 "https://pypi.org/simple/$1/" | grep -o "https://[^\"#]*/$5" |
            tail -n 1)
        curl -fsSL --retry 3 -o "$6/$5" "$url"
    else
        echo "neither pip nor curl is there to download $5: install one" >&2
        return 1
    fi
}

# check_wheel FILE SHA256
check_wheel() {
    local found
    found=$(sha256sum "$1" | cut -d ' ' -f 1)
    if [ "$found" != "$2" ]; then
        echo "$1 has the checksum $found instead of $2: it is damaged or another file" >&2
        return 1
    fi
}

# unpack_wheel FILE FOLDER PATTERN...
unpack_wheel() {
    if command -v unzip >/dev/null; then
        unzip -q "$1" "${@:3}" -d "$2"
        return
    fi
    python3 - "$@" <<'PYTHON'
import fnmatch, sys, zipfile
file, folder, *patterns = sys.argv[1:]
archive = zipfile.ZipFile(file)
for name in archive.namelist():
    if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
        archive.extract(name, folder)
PYTHON
}
