#include "heap_stress.h"

int main() { di::stress_heap(96 * di::kMiB, ""); }
