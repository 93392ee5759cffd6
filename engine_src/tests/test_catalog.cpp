#include "aligned_memory.h"
#include "catalog.h"
#include "error.h"
#include "slot_layout.h"

#include "check.h"
#include "temp_dir.h"
#include "tiny_model.h"

#include "gguf.h"
#include "llama.h"

#include <regex.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

using namespace moe;

namespace {

// The message of the refusal; empty when there was none.
std::string refusal(const std::string & path) {
    try {
        Catalog::read(path);
    } catch (const Error & e) {
        CHECK(e.code() == ExitCode::model);
        CHECK(std::string(e.what()).find('\n') == std::string::npos);
        return e.what();
    }
    return "";
}

bool contains(const std::string & text, const std::string & part) { return text.find(part) != std::string::npos; }

void knows_every_expert_and_every_other_tensor() {
    const TempDir dir;
    tiny::Model m;
    m.n_layer = 3;
    m.expert_type = GGML_TYPE_Q8_0;
    const std::string path = tiny::write(m, dir.file("m"));
    const Catalog catalog = Catalog::read(path);
    const uint64_t slice = 256 * 256 / 32 * 34;
    CHECK(catalog.blocks().size() == 3);
    CHECK(catalog.n_moe_layer() == 3);
    CHECK(catalog.n_expert() == 8);
    CHECK(catalog.n_expert_used() == 2);
    CHECK(catalog.n_keys() == 24);
    CHECK(catalog.expert_bytes_max() == 3 * slice);
    CHECK(catalog.expert_bytes() == 24 * 3 * slice);
    CHECK(catalog.block(1).first_key == 8);
    CHECK(catalog.block(1).layer == 1);
    CHECK(catalog.block(1).parts.size() == 3);
    CHECK(catalog.block(1).parts[0].tensor == "blk.1.ffn_gate_exps.weight");
    CHECK(catalog.block(1).parts[1].tensor == "blk.1.ffn_up_exps.weight");
    CHECK(catalog.block(1).parts[2].tensor == "blk.1.ffn_down_exps.weight");
    CHECK(catalog.block(1).parts[0].slice_bytes == slice);

    const PartRef * ref = catalog.find_part("blk.2.ffn_down_exps.weight");
    CHECK(ref != nullptr && ref->block == 2 && ref->part == 2);
    CHECK(catalog.find_part("blk.2.ffn_gate_inp.weight") == nullptr);
    CHECK(catalog.find_dense("blk.2.ffn_gate_inp.weight") != nullptr);
    CHECK(catalog.find_dense("token_embd.weight")->sparse_rows);
    CHECK(!catalog.find_dense("output.weight")->sparse_rows);

    // Together they are the whole data section, up to alignment padding.
    uint64_t bytes = catalog.expert_bytes();
    for (const DenseTensor & t : catalog.dense()) {
        bytes += t.size;
    }
    CHECK(bytes <= std::filesystem::file_size(path));
    CHECK(bytes + 65536 > std::filesystem::file_size(path));
}

void layers_know_their_bytes() {
    const TempDir dir;
    tiny::Model m;
    m.n_layer = 3;
    const Catalog catalog = Catalog::read(tiny::write(m, dir.file("m")));
    const std::vector<LayerBytes> layers = catalog.layer_bytes();
    CHECK(layers.size() == 3);
    uint64_t dense = 0;
    for (uint32_t l = 0; l < layers.size(); ++l) {
        CHECK(layers[l].expert == catalog.block(l).expert_bytes());
        CHECK(layers[l].dense > catalog.find_dense("blk." + std::to_string(l) + ".attn_q.weight")->size);
        dense += layers[l].dense;
    }
    uint64_t expected = 0;
    for (const DenseTensor & tensor : catalog.dense()) {
        expected += tensor.name.rfind("blk.", 0) == 0 ? tensor.size : 0;
    }
    CHECK(dense == expected);
}

void a_tied_embedding_is_read_in_full() {
    const TempDir dir;
    tiny::Model m;
    m.tied_output = true;
    const Catalog catalog = Catalog::read(tiny::write(m, dir.file("m")));
    CHECK(!catalog.find_dense("token_embd.weight")->sparse_rows);
}

void experts_that_nothing_routes_to_are_left_out() {
    const TempDir dir;
    tiny::Model m;
    m.n_layer = 3;
    m.n_layer_nextn = 1;
    const Catalog catalog = Catalog::read(tiny::write(m, dir.file("m")));
    CHECK(catalog.n_moe_layer() == 2);
    CHECK(catalog.n_keys() == 16);
    CHECK(catalog.find_part("blk.1.ffn_down_exps.weight") != nullptr);
    CHECK(catalog.find_part("blk.2.ffn_down_exps.weight") == nullptr);
    CHECK(catalog.find_dense("blk.2.ffn_down_exps.weight") == nullptr);
    CHECK(catalog.find_dense("blk.2.attn_q.weight") != nullptr);
    CHECK(catalog.layer_bytes().size() == 2);
    m.n_layer_nextn = 4;
    CHECK(contains(refusal(tiny::write(m, dir.file("n"))), "no fused routed experts"));
}

void shards_are_found_from_the_first() {
    const TempDir dir;
    tiny::Model m;
    m.n_shards = 3;
    const std::string path = tiny::write(m, dir.file("m"));
    const Catalog catalog = Catalog::read(path);
    CHECK(catalog.shards() == tiny::files(m, dir.file("m")));
    CHECK(catalog.blocks().size() == 2);
    CHECK(catalog.block(0).parts.size() == 3);
    CHECK(catalog.block(1).parts.back().shard == 2);

    CHECK(contains(refusal(catalog.shards()[1]), "first shard"));
    std::filesystem::remove(catalog.shards()[2]);
    CHECK(contains(refusal(path), "00003-of-00003.gguf"));
    std::filesystem::rename(path, dir.file("renamed.gguf"));
    CHECK(contains(refusal(dir.file("renamed.gguf")), "-00001-of-3"));
}

void what_cannot_be_used_is_refused_with_a_reason() {
    const TempDir dir;
    CHECK(contains(refusal(dir.file("absent.gguf")), "No such file"));
    CHECK(contains(refusal("/"), "not a regular file"));
    std::ofstream(dir.file("text.gguf")) << "This is not a model.\n";
    CHECK(contains(refusal(dir.file("text.gguf")), "not a readable GGUF"));
    std::ofstream(dir.file("empty.gguf")).flush();
    CHECK(contains(refusal(dir.file("empty.gguf")), "not a readable GGUF"));

    const std::string path = tiny::write(tiny::Model{}, dir.file("m"));
    const uint64_t size = std::filesystem::file_size(path);
    CHECK(truncate(path.c_str(), static_cast<off_t>(size - 100'000)) == 0);
    CHECK(contains(refusal(path), "truncated: tensor blk.1.ffn_down_exps.weight"));
    CHECK(truncate(path.c_str(), 2000) == 0);
    CHECK(contains(refusal(path), "not a readable GGUF"));
}

void a_dense_model_is_refused() {
    const TempDir dir;
    gguf_context * gguf = gguf_init_empty();
    gguf_set_val_str(gguf, "general.architecture", "llama");
    CHECK(gguf_write_to_file(gguf, dir.file("dense.gguf").c_str(), false));
    gguf_free(gguf);
    CHECK(contains(refusal(dir.file("dense.gguf")), "not a MoE model"));
}

// regex.h: GCC 12 warns about uninitialised members inside its own <regex> when it sanitizes.
void the_override_pattern_names_the_same_tensors() {
    regex_t pattern;
    CHECK(regcomp(&pattern, kExpertTensorPattern, REG_EXTENDED | REG_NOSUB) == 0);
    for (const char * name : {"blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight", "blk.12.ffn_gate_up_exps.weight",
                              "blk.3.ffn_down_chexps.weight"}) {
        CHECK(regexec(&pattern, name, 0, nullptr, 0) == 0);
        CHECK(is_expert_tensor(name));
    }
    for (const char * name : {"blk.0.ffn_gate_exps.bias", "blk.0.ffn_down_exps.scale", "blk.0.ffn_up_shexp.weight",
                              "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate.weight"}) {
        CHECK(regexec(&pattern, name, 0, nullptr, 0) != 0);
        CHECK(!is_expert_tensor(name));
    }
    regfree(&pattern);
}

// Slots must hold every window that a read writes, whatever the expert's offset in its first block.
void slots_have_room_for_every_read_window() {
    const TempDir dir;
    for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q4_K, GGML_TYPE_Q8_0}) {
        tiny::Model m;
        m.expert_type = type;
        m.n_ff_exp = type == GGML_TYPE_Q8_0 ? 96 : 256;
        const Catalog catalog = Catalog::read(tiny::write(m, dir.file("m")));
        const SlotLayout layout(catalog);
        for (uint32_t b = 0; b < catalog.blocks().size(); ++b) {
            const MoeBlock & block = catalog.block(b);
            CHECK(layout.blocks()[b].slot_bytes % kIoBlock == 0);
            for (uint32_t p = 0; p < block.parts.size(); ++p) {
                const PartPlace place = layout.place({b, p});
                const uint64_t end = p + 1 < block.parts.size() ? layout.place({b, p + 1}).window : layout.blocks()[b].slot_bytes;
                const ExpertPart & part = block.parts[p];
                for (uint64_t e = 0; e < block.n_expert; ++e) {
                    const uint64_t shift = (part.offset + e * part.slice_bytes) % kIoBlock;
                    CHECK(place.window + align_up(shift + part.slice_bytes) <= end);
                    CHECK(place.shift == shift || place.shift == 0);
                }
                CHECK(place.window + place.shift + part.slice_bytes <= end);
                CHECK(place.window % kIoBlock == 0);
            }
        }
    }
}

}  // namespace

int main() {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    check::run("knows every expert and every other tensor", knows_every_expert_and_every_other_tensor);
    check::run("layers know their bytes", layers_know_their_bytes);
    check::run("a tied embedding is read in full", a_tied_embedding_is_read_in_full);
    check::run("experts that nothing routes to are left out", experts_that_nothing_routes_to_are_left_out);
    check::run("shards are found from the first", shards_are_found_from_the_first);
    check::run("what cannot be used is refused with a reason", what_cannot_be_used_is_refused_with_a_reason);
    check::run("a dense model is refused", a_dense_model_is_refused);
    check::run("the override pattern names the same tensors", the_override_pattern_names_the_same_tensors);
    check::run("slots have room for every read window", slots_have_room_for_every_read_window);
    return check::result();
}
