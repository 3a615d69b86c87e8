#!/bin/bash
# Puts the built site into the branch gh-pages of a repository, in a folder for its version: publish_site.sh VERSION REMOTE
# The front page leads to the newest release, or to main while there is none, and lists all versions.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 remote=$2 site=$PWD/build/site
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

git clone -q --depth 1 --branch gh-pages "$remote" "$folder" 2>/dev/null || git init -q -b gh-pages "$folder"
cd "$folder"
rm -rf "./$version"
cp -r "$site" "$version"
touch .nojekyll  # GitHub would leave out folders with an underscore
mapfile -t versions < <(find . -mindepth 1 -maxdepth 1 -type d -not -name .git -printf '%f\n' | sort -rV)
newest=$(printf '%s\n' "${versions[@]}" | grep -m 1 '^[0-9]' || echo main)
{
    echo "<!doctype html><html lang=en><meta charset=utf-8><title>Di-store</title>"
    echo "<meta http-equiv=refresh content='0; url=$newest/site/index.html'><h1>Di-store</h1><ul>"
    for each in "${versions[@]}"; do echo "<li><a href='$each/site/index.html'>$each</a></li>"; done
    echo "</ul></html>"
} >index.html
git add -A
git -c user.name=site -c user.email=site@localhost commit -q --allow-empty -m "The site of $version"
git push -q "$remote" gh-pages
