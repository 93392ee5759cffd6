#include "memory_plan.h"

#include "decode.h"
#include "error.h"
#include "json.h"
#include "llama_session.h"
#include "model_facts.h"
#include "pager.h"
#include "process.h"

#include "ggml-cpu.h"
#include "llama-ext.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace moe {

namespace {

// What the forked child finds out; plain bytes through a pipe.
struct DryRun {
    bool ok = false;
    int32_t exit_code = 0;  // when not ok
    char message[1024] = {};
    uint64_t kv = 0;
    uint64_t compute = 0;
    uint64_t scratch = 0;
    uint64_t repacked = 0;
    uint64_t base = 0;
    uint32_t n_prompt = 0;
};

// Largest kernel scratch of a graph for `n_tokens`: the CPU backend keeps one such buffer.
uint64_t scratch_bytes(llama_context * context, uint32_t n_tokens, int threads) {
    ggml_cgraph * graph = llama_graph_reserve(context, n_tokens, 1, 1);
    return graph ? ggml_graph_plan(graph, threads, nullptr).work_size : 0;
}

// llama.cpp reports a graph buffer once for each backend, also where several backends allocate from one buffer type
// and so share one buffer: the paging device's results lie in the CPU's memory.
uint64_t backends_sharing(ggml_backend_buffer_type_t type) {
    uint64_t count = 0;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        count += ggml_backend_dev_buffer_type(ggml_backend_dev_get(i)) == type ? 1 : 0;
    }
    return std::max<uint64_t>(count, 1);
}

void dry_run(const Options & options, const ModelFacts & facts, const std::string & prompt, Pager * pager, DryRun & out) {
    const ModelPtr model = load_model(options, facts.arch, pager, LoadDepth::metadata_only);
    const ContextPtr context = make_context(model.get(), options);
    for (const auto & [type, part] : llama_get_memory_breakdown(context.get())) {
        out.kv += part.context;
        out.compute += part.compute / backends_sharing(type);
        // Only weights of the CPU's own type are used where the file is mapped; the others are copies of it.
        if (options.repack && type != ggml_backend_cpu_buffer_type()) {
            out.repacked += part.model;
        }
    }
    if (!prompt.empty()) {
        out.n_prompt = static_cast<uint32_t>(tokenize(llama_model_get_vocab(model.get()), prompt, TextPlace::beginning).size());
    }
    out.base = data_bytes().value_or(0);  // before the scratch probe, which allocates the compute buffers
    out.scratch = std::max(scratch_bytes(context.get(), llama_n_ubatch(context.get()), options.threads),
                           scratch_bytes(context.get(), 1, options.threads));
}

// What the child has to say comes through the pipe; llama.cpp's and ggml's own words would only confuse. Not so
// under a sanitizer, whose reports must be seen.
void quiet_stderr() {
#ifndef MOE_SANITIZED
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDERR_FILENO);
        close(null);
    }
#endif
}

[[noreturn]] void dry_run_child(int fd, const Options & options, const ModelFacts & facts, const std::string & prompt,
                                Pager * pager) {
    // The plan must be found out under any limit, so lift it here where that is allowed. The child allocates
    // neither weights nor caches.
    rlimit limit{};
    if (getrlimit(RLIMIT_DATA, &limit) == 0) {
        rlimit lifted = {RLIM_INFINITY, RLIM_INFINITY};
        if (setrlimit(RLIMIT_DATA, &lifted) != 0) {
            limit.rlim_cur = limit.rlim_max;
            setrlimit(RLIMIT_DATA, &limit);
        }
    }
    quiet_stderr();
    // Out of memory has one meaning here, wherever it happens and whoever would catch the exception.
    std::set_new_handler([] { _exit(1); });
#ifdef __GLIBC__
    // Memory freed meanwhile stays in the heap, so that its size at the end is the peak that loading passes through.
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
#endif
    DryRun result;
    const auto failed = [&](ExitCode code, const char * message) {
        result.exit_code = static_cast<int32_t>(code);
        std::strncpy(result.message, message, sizeof result.message - 1);
    };
    try {
        dry_run(options, facts, prompt, pager, result);
        result.ok = true;
    } catch (const Error & error) {
        failed(error.code(), error.what());
    } catch (const std::exception & error) {
        failed(ExitCode::other, error.what());
    }
    // A pipe takes this much in one piece.
    const bool sent = write(fd, &result, sizeof result) == static_cast<ssize_t>(sizeof result);
    _exit(sent ? 0 : 1);
}

// Empty when the child died without an answer: out of memory is all that is known to do that.
std::optional<DryRun> run_dry(const Options & options, const ModelFacts & facts, const std::string & prompt,
                              Pager * pager) {
    int ends[2];
    if (pipe(ends) != 0) {
        throw Error(ExitCode::other, std::string("cannot create a pipe: ") + std::strerror(errno));
    }
    const pid_t child = fork();
    if (child < 0) {
        const int error = errno;
        close(ends[0]);
        close(ends[1]);
        throw Error(ExitCode::other, std::string("cannot fork to plan memory: ") + std::strerror(error));
    }
    if (child == 0) {
        close(ends[0]);
        dry_run_child(ends[1], options, facts, prompt, pager);
    }
    close(ends[1]);

    DryRun result;
    size_t got = 0;
    while (got < sizeof result) {
        const ssize_t n = read(ends[0], reinterpret_cast<char *>(&result) + got, sizeof result - got);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        got += static_cast<size_t>(n);
    }
    close(ends[0]);
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    if (got != sizeof result) {
        return std::nullopt;
    }
    if (!result.ok) {
        throw Error(static_cast<ExitCode>(result.exit_code), result.message);
    }
    return result;
}

// Heap that appears only once decoding runs (scheduler, batches, telemetry), and the unevenness of malloc.
constexpr uint64_t base_reserve = uint64_t{4} << 20;

// What the smallest models take (mostly graph metadata), and how often the file's metadata is held while loading.
constexpr uint64_t base_least = uint64_t{24} << 20;
constexpr uint64_t metadata_copies = 3;

}  // namespace

uint64_t MemoryPlan::needed_bytes() const {
    return arena_bytes + dense_bytes + kv_bytes + compute_bytes + stack_bytes + io_bytes + base_bytes;
}

std::string MemoryPlan::json() const {
    return JsonObject()
        .text("type", std::string("memory_plan"))
        .number("arena_bytes", arena_bytes)
        .number("dense_bytes", dense_bytes)
        .number("kv_bytes", kv_bytes)
        .number("compute_bytes", compute_bytes)
        .number("stack_bytes", stack_bytes)
        .number("io_bytes", io_bytes)
        .number("base_bytes", base_bytes)
        .number("needed_bytes", needed_bytes())
        .number("allowed_bytes", allowed_bytes)
        .str();
}

std::string MemoryPlan::refusal() const {
    return "needs " + std::to_string(needed_bytes()) + (lower_bound ? " bytes or more" : " bytes") +
           " of anonymous memory, allowed " +
           std::to_string(allowed_bytes.value_or(0)) + " (RLIMIT_DATA)";
}

MemoryPlan plan_memory(const Options & options, const ModelFacts & facts, const std::string & prompt, Pager * pager) {
    MemoryPlan plan;
    plan.allowed_bytes = data_limit();
    // Compute threads beside the main one, and the reader of a session's requests.
    plan.stack_bytes = static_cast<uint64_t>(options.threads - 1 + (options.session ? 1 : 0)) * thread_stack_bytes();
    if (pager) {
        const PagerInfo info = pager->info();
        plan.arena_bytes = info.arena_bytes;
        plan.dense_bytes = info.dense_anon_bytes;
        plan.io_bytes = info.io_buffer_bytes;
        plan.stack_bytes += info.thread_stack_bytes;
    }

    const std::optional<DryRun> dry = run_dry(options, facts, prompt, pager);
    if (!dry) {
        // Not even the metadata fits, and the limit could not be lifted to find out more: a lower bound.
        plan.lower_bound = true;
        plan.base_bytes = base_least + metadata_copies * facts.metadata_bytes;
        if (!plan.allowed_bytes) {
            throw Error(ExitCode::other, "planning memory ended without an answer although no limit is set");
        }
        const uint64_t known = plan.needed_bytes();
        plan.base_bytes += known <= *plan.allowed_bytes ? *plan.allowed_bytes + 1 - known : 0;
        return plan;
    }
    plan.dense_bytes += dry->repacked;
    plan.kv_bytes = dry->kv;
    // A second scratch buffer: the pager computes experts on a CPU backend of its own.
    plan.compute_bytes = dry->compute + dry->scratch * (pager ? 2 : 1);
    plan.base_bytes = dry->base + base_reserve;
    if (!prompt.empty()) {
        plan.n_prompt = dry->n_prompt;
    }
    return plan;
}

}  // namespace moe
