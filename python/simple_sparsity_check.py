"""Source documents 000 and 004's check: AdaptiveSplashAttention on the latter's own example, measured beside what they say.

    cd python && python -c "exec(open('simple_sparsity_check.py').read())"

B 2, H 8, N 1024, d 64, alpha 1.5, k_keep 8, causal by positions; on the GPU where PyTorch sees one, else on the CPU.
"""


def simple_sparsity_check(N=1024, k_keep=8):
    """Prints a table and returns what was measured. All names are local: exec() may run it in any scope."""
    import ctypes
    import statistics
    import time

    import torch

    from splash_attention import AdaptiveSplashAttention

    B, H, d, scale = 2, 8, 64, 0.125
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    Q, K, V = (torch.randn(B, H, N, d, device=device) for _ in range(3))
    positions = torch.arange(N, device=device).expand(B * H, N).contiguous()
    hidden = torch.ones(N, N, dtype=torch.bool, device=device).triu(1)
    attention = AdaptiveSplashAttention(head_dim=d, alpha=1.5, k_keep=k_keep, sm_scale=scale).to(device).eval()

    def ours():
        return attention(Q, K, V, positions, positions)

    def dense():
        scores = (Q @ K.transpose(-1, -2) * scale).masked_fill_(hidden, -torch.inf)
        return torch.softmax(scores, dim=-1) @ V

    def fused():
        return torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=True, scale=scale)

    def synchronize():
        if device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(call):
        times = []
        for _ in range(7):
            synchronize()
            start = time.perf_counter()
            call()
            synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def resident(field):
        with open("/proc/self/status") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith(field + ":"))

    def peak_bytes(call):
        """Q, K, V and the most that the call holds beside them; NaN where the system does not say."""
        inputs = 3 * Q.numel() * Q.element_size()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            return inputs + torch.cuda.max_memory_allocated() - before
        try:
            ctypes.CDLL(None).malloc_trim(0)  # what earlier calls left on the heap would hide what this one takes
            with open("/proc/self/clear_refs", "w") as reset:
                reset.write("5")  # VmHWM starts again from the present size
            before = resident("VmRSS")
            call()
            return inputs + max(0, resident("VmHWM") - before)
        except (AttributeError, OSError):
            return float("nan")

    with torch.no_grad():
        out, softmax = ours(), dense()
        fused()  # the first call of each also starts threads and loads kernels
        zeros = attention.sparsity_by_token
        memory = {call: peak_bytes(call) for call in (ours, dense, fused)}
        time_of = {call: seconds(call) for call in (ours, dense, fused)}
        measured = {
            "zeros": zeros,
            "operations": zeros / 2,  # every score is computed, to choose by; of values only those with a weight are read
            "memory": memory[ours] / memory[dense],
            "memory_fused": memory[ours] / memory[fused],
            "mse": (out - softmax).square().mean().item(),
            "speed": time_of[dense] / time_of[ours],
            "speed_fused": time_of[fused] / time_of[ours],
        }

    place = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    rows = [
        ("weights that are zero, of the visible pairs", f"{measured['zeros']:.1%}", "99.6 % (at N 2048)"),
        ("operations skipped", f"{measured['operations']:.1%}", "99.6 %"),
        ("memory, of dense attention that stores its scores", f"{measured['memory']:.0%}", "79 %, below 80 %"),
        ("memory, of fused dense attention", f"{measured['memory_fused']:.0%}", ""),
        ("MSE against softmax attention", f"{measured['mse']:.1e}", "below 1e-5 (004), 1e-4 (000)"),
        ("speed, of dense attention that stores its scores", f"{measured['speed']:.2f}x", "0.08x; progress 0.2, good 0.5, target 1.0"),
        ("speed, of fused dense attention", f"{measured['speed_fused']:.2f}x", ""),
    ]
    print(f"AdaptiveSplashAttention, B {B}, H {H}, N {N}, d {d}, k_keep {k_keep}, causal, float32, {place}")
    for row in (("", "measured", "the documents"), *rows):
        print(f"{row[0]:<50}  {row[1]:>10}  {row[2]}".rstrip())
    return measured


simple_sparsity_check()
