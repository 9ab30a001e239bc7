// A C++ program with a life of its own: a locale with decimal commas, threads, and pipelines that come and go. Prints
// nothing when all is well, else what is wrong, and returns 1.
#include <sluice/sluice.h>

#include <atomic>
#include <chrono>
#include <clocale>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dirent.h>
#include <fstream>
#include <malloc.h>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 2, kRows = 4, kMicrobatches = 3, kRounds = 12;

std::atomic<int> failures{ 0 };

void expect(bool truth, const std::string &what)
{
    if (truth)
        return;
    std::fprintf(stderr, "host: %s (last message: %s)\n", what.c_str(), sl_error_message());
    failures++;
}

void expect_ok(sl_status status, const char *what)
{
    expect(status == SL_OK, what);
}

int entries(const char *folder)
{
    int count = 0;
    DIR *open = opendir(folder);
    while (open && readdir(open))
        count++;
    if (open)
        closedir(open);
    return count;
}

// Whether it becomes true: threads set their masks as they start, and are seen for a moment after they were joined.
template <typename Truth> bool soon(Truth truth)
{
    for (int i = 0; i < 10000 && !truth(); i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return truth();
}

int threads()
{
    return entries("/proc/self/task") - 2;
}

// ---- Numbers under a locale with commas

std::string contents(const std::string &path)
{
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

void numbers_keep_their_point(const std::string &folder)
{
    double value = 0;
    expect_ok(sl_parse_double("x", "0.25", 0, 1, &value), "0.25 is a number");
    expect(value == 0.25, "0.25 is a quarter");
    expect(sl_parse_double("x", "0,25", 0, 1, &value) != SL_OK, "0,25 is not a number");
    expect(sl_parse_double("x", "3", 0, 1.5, &value) != SL_OK &&
               std::string(sl_error_message()).find("1.5") != std::string::npos,
           "messages have points");

    sl_costs costs;
    sl_costs_init(&costs);
    expect_ok(sl_costs_parse("F=1.25,I=0.75", &costs), "costs with points");
    sl_generate_options options = {};
    options.name = "ZBVZEROBUBBLE";
    options.ranks = kRanks;
    options.microbatches = 4;
    sl_schedule *schedule = nullptr;
    sl_timeline *timeline = nullptr;
    expect_ok(sl_schedule_generate(&options, &schedule), "a schedule by its name in capitals");
    expect_ok(sl_schedule_simulate(schedule, &costs, nullptr, 0, &timeline), "its simulation");
    for (const char *name : { "/view.svg", "/view.json", "/view.html" }) {
        sl_view_format format;
        expect_ok(sl_view_format_of(name, &format), name);
        expect_ok(sl_timeline_save(timeline, format, nullptr, (folder + name).c_str()), name);
        std::string text = contents(folder + name);
        expect(text.find("1.25") != std::string::npos && text.find("1,25") == std::string::npos, name);
    }
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(schedule);
}

// The other file formats and their readers: configuration, model folder, trace.
void files_keep_their_point(const std::string &folder)
{
    const char *overrides[] = { "data.text=/dev/null", "run.out=/tmp", "optimizer.lr=0.0125" };
    sl_train_config *config = nullptr;
    expect_ok(sl_train_config_load(nullptr, overrides, 3, &config), "overrides with points");
    expect(config->optimizer.lr == 0.0125, "the learning rate");
    sl_train_config_destroy(config);

    sl_model model = sl_model_default(&sl_model_gpt2), again;
    model.gpt2.layer_norm_epsilon = 0.000125;
    expect_ok(sl_model_save_config(&model, SL_F32, folder.c_str()), "config.json");
    expect_ok(sl_model_load_config(folder.c_str(), &again), "config.json read back");
    expect(again.gpt2.layer_norm_epsilon == 0.000125, "layer_norm_epsilon read back");
}

// ---- Pipelines that come and go

sl_status build(sl_graph **out)
{
    sl_graph *g = nullptr;
    if (sl_graph_create(&g) != SL_OK)
        return SL_ERR_MEMORY;
    const int64_t x_dims[] = { kRows, 8 }, w_dims[] = { 8, 8 }, target_dims[] = { kRows };
    sl_value x = sl_graph_input(g, "x", SL_F32, 2, x_dims);
    sl_value targets = sl_graph_input(g, "targets", SL_I32, 1, target_dims);
    sl_value h = sl_tanh(g, sl_linear(g, x, sl_graph_param(g, "a", 2, w_dims, { SL_INIT_NORMAL, 0.5 }), SL_NO_VALUE));
    sl_split_mark(g);
    sl_value y = sl_linear(g, h, sl_graph_param(g, "b", 2, w_dims, { SL_INIT_NORMAL, 0.5 }), SL_NO_VALUE);
    sl_graph_loss(g, sl_cross_entropy(g, y, targets, -1));
    sl_status status = sl_graph_finish(g);
    *out = g;
    return status;
}

double train_one(sl_group *group)
{
    sl_device *device = nullptr;
    sl_graph *graph = nullptr;
    sl_partition *partition = nullptr;
    sl_schedule *schedule = nullptr;
    sl_stage *stage = nullptr;
    sl_runtime *runtime = nullptr;
    sl_step_result result = {};
    sl_split_spec split = {};
    split.kind = SL_SPLIT_MARKS;
    sl_generate_options generate = {};
    generate.name = "1f1b";
    generate.ranks = kRanks;
    generate.microbatches = kMicrobatches;
    sl_device_options device_options = {};
    device_options.threads = 2;
    expect_ok(sl_device_open("cpu", &device_options, &device), "device");
    expect_ok(build(&graph), "graph");
    expect_ok(sl_graph_partition(graph, &split, &partition), "partition");
    expect_ok(sl_schedule_generate(&generate, &schedule), "schedule");
    expect_ok(sl_stage_build(&partition, 1, sl_group_rank(group), device, nullptr, &stage), "stage");
    sl_runtime_options options = {};
    options.group = group;
    options.device = device;
    options.schedule = schedule;
    options.stages = &stage;
    options.stage_count = 1;
    options.trace_events = 256;
    expect_ok(sl_runtime_create(&options, &runtime), "runtime");

    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++) {
        sl_param_info info = { params[i].name, SL_F32, params[i].data.meta.shape, params[i].init };
        sl_param_init(&info, 7, 0, sl_meta_count(&params[i].data.meta), static_cast<float *>(params[i].data.data));
    }
    std::vector<float> x(kMicrobatches * kRows * 8, 0.5f);
    std::vector<int32_t> targets(kMicrobatches * kRows, 3);
    const int64_t x_dims[] = { kMicrobatches * kRows, 8 }, target_dims[] = { kMicrobatches * kRows };
    sl_arg args[] = { { "x", { x.data(), sl_meta_make(SL_F32, 2, x_dims) } },
                      { "targets", { targets.data(), sl_meta_make(SL_I32, 1, target_dims) } } };
    sl_step step = {};
    step.args = args;
    step.arg_count = 2;
    for (step.number = 0; step.number < 2; step.number++)
        expect_ok(sl_runtime_step(runtime, &step, &result), "step");

    double loss = result.loss;
    sl_runtime_destroy(runtime);
    sl_stage_destroy(stage);
    sl_schedule_destroy(schedule);
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
    sl_device_close(device);
    return loss;
}

// Threads of the library get no signals but those of their own faults: all that could get a SIGINT are the program's, and
// none blocks SIGSEGV, so that a program's crash handler runs.
bool library_threads_block_signals()
{
    int open_to_signals = 0, blocking_faults = 0;
    DIR *tasks = opendir("/proc/self/task");
    while (dirent *task = tasks ? readdir(tasks) : nullptr) {
        if (task->d_name[0] == '.')
            continue;
        std::ifstream status(std::string("/proc/self/task/") + task->d_name + "/status");
        for (std::string line; std::getline(status, line);) {
            if (line.compare(0, 7, "SigBlk:") != 0)
                continue;
            unsigned long long blocked = std::stoull(line.substr(7), nullptr, 16);
            open_to_signals += (blocked >> (SIGINT - 1) & 1) == 0;
            blocking_faults += (blocked >> (SIGSEGV - 1) & 1) != 0;
        }
    }
    if (tasks)
        closedir(tasks);
    return open_to_signals == 1 && blocking_faults == 0;
}

void threads_are_out_of_the_way()
{
    sl_device *device = nullptr;
    sl_device_options options = {};
    options.threads = 3;
    expect_ok(sl_device_open("cpu", &options, &device), "device");
    sl_checkpoint_writer *writer = nullptr;
    expect_ok(sl_checkpoint_writer_create("/tmp", 0, &writer), "writer");
    expect(soon([] { return threads() == 1 + 2 + 1; }), "the library's threads run");
    expect(soon(library_threads_block_signals), "only the program's own thread gets signals");
    sl_checkpoint_writer_destroy(writer);
    sl_device_close(device);
}

double round_of_training()
{
    sl_group *groups[kRanks] = {};
    double losses[kRanks] = {};
    std::vector<std::thread> threads;
    expect_ok(sl_group_open_threads(kRanks, nullptr, groups), "a group of threads");
    for (int r = 0; r < kRanks; r++) {
        threads.emplace_back([&, r] {
            losses[r] = train_one(groups[r]);
            sl_group_close(groups[r]);
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    expect(losses[0] == losses[1] && std::isfinite(losses[0]), "both ranks know the same loss");
    return losses[0];
}

// An error belongs to the thread it happened in.
void errors_stay_in_their_thread()
{
    double value = 0;
    expect(sl_parse_double("mine", "?", 0, 1, &value) != SL_OK, "an error");
    std::thread([] {
        double other = 0;
        expect(sl_parse_double("yours", "?", 0, 1, &other) != SL_OK, "an error in another thread");
    }).join();
    expect(std::string(sl_error_message()).find("mine") != std::string::npos, "the message of this thread");
}

void nothing_piles_up()
{
    double first = round_of_training();
    for (int i = 0; i < 3; i++)
        round_of_training(); // what is made once for the process is made by now
    expect(soon([] { return threads() == 1; }), "threads are left over");
    int descriptors = entries("/proc/self/fd");
    size_t heap = mallinfo2().uordblks;
    for (int i = 0; i < kRounds; i++)
        expect(round_of_training() == first, "every round gives the same bits");
    expect(soon([] { return threads() == 1; }), "threads pile up");
    expect(entries("/proc/self/fd") == descriptors, "descriptors pile up");
    size_t more = mallinfo2().uordblks - heap;
    expect(static_cast<ptrdiff_t>(more) < 1024 * kRounds, "memory piles up: " + std::to_string(more));
}

void slow_log(void *lines, sl_log_level, const char *)
{
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++*static_cast<std::atomic<int> *>(lines);
}

// Forked ranks of a program that has threads: one of them is logging nearly all the time.
int forked_rank(void *, int)
{
    sl_group *group = nullptr;
    sl_log(SL_LOG_WARN, "a line of the rank's");
    expect_ok(sl_group_open(nullptr, &group), "a group of processes");
    double loss = train_one(group);
    sl_group_close(group);
    return failures == 0 && std::isfinite(loss) ? 0 : 1;
}

void launches_beside_threads()
{
    std::atomic<bool> stop{ false };
    std::atomic<int> lines{ 0 };
    sl_log_set_callback(slow_log, &lines);
    std::thread busy([&] {
        while (!stop) {
            std::vector<char> block(1000);
            sl_log(SL_LOG_WARN, "a line of %zu", block.size());
        }
    });
    sl_launch_options options = {};
    options.ranks = kRanks;
    options.run = forked_rank;
    for (int i = 0; i < 3; i++) {
        static sl_launch_result result;
        expect_ok(sl_launch(&options, &result), "launch");
        expect(result.exit_code == 0, std::string("the launched ranks: ") + result.report);
    }
    stop = true;
    busy.join();
    expect(lines > 0, "the log has lines");
    sl_log_set_callback(nullptr, nullptr);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2 || !std::setlocale(LC_ALL, "comma") || std::localeconv()->decimal_point[0] != ',') {
        std::fprintf(stderr, "host: usage: LOCPATH=FOLDER-WITH-comma host FOLDER\n");
        return 1;
    }
    numbers_keep_their_point(argv[1]);
    files_keep_their_point(argv[1]);
    errors_stay_in_their_thread();
    threads_are_out_of_the_way();
    nothing_piles_up();
    launches_beside_threads();
    expect(std::localeconv()->decimal_point[0] == ',', "the program's own locale stays");
    return failures == 0 ? 0 : 1;
}
