// Dense weights in llama.cpp's file mapping.
#pragma once

#include "catalog.h"

namespace moe {

// A mapping made under LoadScope is advised for random access, and nothing of it is in memory: a first pass over the
// dense weights would fault them in page by page. Gives the ranges of the dense weights, and only those, back
// their readahead and asks for them. Where the mapping cannot be found nothing happens: this is about speed.
void prefetch_dense_mapping(const Catalog & catalog);

// Reads the dense weights once, in the order of the file: what would be faulted in during the first tokens is then
// there before them. The same holds where the mapping cannot be found.
void sweep_dense_mapping(const Catalog & catalog);

}  // namespace moe
