// As stress_heap, in a store with a disk tier: objects leave memory, and come back.
#include "heap_stress.h"

int main() {
  const TempFolder folder;
  di::stress_heap(32 * di::kMiB, folder.path());
}
