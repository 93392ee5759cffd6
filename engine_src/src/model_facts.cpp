#include "model_facts.h"

#include "catalog.h"
#include "error.h"

#include "gguf.h"

#include <sys/stat.h>

#include <memory>

namespace moe {

namespace {

struct GgufDeleter {
    void operator()(gguf_context * gguf) const { gguf_free(gguf); }
};

std::optional<std::string> text_value(const gguf_context * gguf, const char * key) {
    const int64_t id = gguf_find_key(gguf, key);
    if (id < 0 || gguf_get_kv_type(gguf, id) != GGUF_TYPE_STRING) {
        return std::nullopt;
    }
    return gguf_get_val_str(gguf, id);
}

}  // namespace

ModelFacts read_model_facts(const std::string & path) {
    const Catalog catalog = Catalog::read(path);

    ModelFacts facts;
    facts.path = path;
    facts.n_moe_layer = catalog.n_moe_layer();
    facts.n_expert = catalog.n_expert();
    facts.n_expert_used = catalog.n_expert_used();
    facts.expert_bytes = catalog.expert_bytes();
    facts.expert_bytes_max = catalog.expert_bytes_max();
    for (const DenseTensor & tensor : catalog.dense()) {
        facts.dense_bytes += tensor.size;
    }
    for (const std::string & shard : catalog.shards()) {
        struct stat info {};
        if (stat(shard.c_str(), &info) == 0) {
            facts.file_bytes += static_cast<uint64_t>(info.st_size);
        }
    }

    gguf_init_params params{};
    params.no_alloc = true;
    const std::unique_ptr<gguf_context, GgufDeleter> gguf(gguf_init_from_file(path.c_str(), params));
    if (!gguf) {
        throw Error(ExitCode::model, path + ": not a readable GGUF file");
    }
    facts.metadata_bytes = gguf_get_data_offset(gguf.get());
    facts.arch = text_value(gguf.get(), "general.architecture").value_or("");
    facts.name = text_value(gguf.get(), "general.name");
    return facts;
}

}  // namespace moe
